/* terminal.c: colours, rows of blocks and bars on a terminal. Not for progress (progress.c). */
#include "cli/terminal.h"
#include "cli/cli.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEVELS = 8 };

/* Returns 1 if the user's locale has UTF-8. The program's own locale stays "C", so that numbers
 * keep their points. */
static int locale_is_utf8(void) {
    locale_t own = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    const int utf8 = own && strcmp(nl_langinfo_l(CODESET, own), "UTF-8") == 0;
    if (own) freelocale(own);
    return utf8;
}

struct cli_canvas cli_canvas_on(FILE *out, enum cli_when plots, enum cli_when colors) {
    const int terminal = isatty(fileno(out));
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    const int plain = (no && *no) || (term && strcmp(term, "dumb") == 0);
    return (struct cli_canvas){.plots = plots == CLI_AUTO ? terminal : plots == CLI_ALWAYS,
                               .utf8 = locale_is_utf8(),
                               .colors = colors == CLI_AUTO ? terminal && !plain
                                                            : colors == CLI_ALWAYS};
}

void cli_color(const struct cli_canvas *c, FILE *out, enum cli_color color) {
    static const char *const code[] = {
        [CLI_PLAIN] = "0", [CLI_RED] = "31", [CLI_GREEN] = "32", [CLI_YELLOW] = "33"};
    if (c->colors) fprintf(out, "\033[%sm", code[color]);
}

/* Returns 0 for a blank, or the height of a block, 1 to LEVELS. Every positive value has a block.
 */
static unsigned height(double value, double largest) {
    if (!(value > 0) || !(largest > 0)) return 0;
    if (isinf(largest)) return isinf(value) ? LEVELS : 1;
    const double eighths = ceil(LEVELS * (value / largest));
    return eighths < 1 ? 1 : eighths > LEVELS ? LEVELS : (unsigned)eighths;
}

static void print_block(const struct cli_canvas *c, FILE *out, unsigned eighths) {
    static const char ascii[LEVELS + 1] = " .:-=+*%#";
    /* U+2581 to U+2588 */
    if (c->utf8 && eighths) fprintf(out, "\xe2\x96%c", (char)(0x80 + (int)eighths));
    else putc(ascii[eighths], out);
}

void cli_strip(const struct cli_canvas *c, FILE *out, const double *value, size_t n, double largest,
               enum cli_color (*color)(double value)) {
    const size_t each = (n + CLI_STRIP - 1) / CLI_STRIP;
    enum cli_color now = CLI_PLAIN;
    for (size_t i = 0; i < n; i += each) {
        double v = value[i];
        for (size_t k = i + 1; k < n && k < i + each; k++)
            if (!(v >= value[k])) v = value[k];
        const enum cli_color wanted = color ? color(v) : CLI_PLAIN;
        if (wanted != now) cli_color(c, out, now = wanted);
        print_block(c, out, height(v, largest));
    }
    if (now != CLI_PLAIN) cli_color(c, out, CLI_PLAIN);
}

void cli_bar(const struct cli_canvas *c, FILE *out, double value, double largest, unsigned width) {
    /* U+2588 is a whole column, U+258F an eighth */
    unsigned eighths = value > 0 && largest > 0 ? (unsigned)ceil(LEVELS * width * (value / largest))
                                                : 0;
    if (eighths > LEVELS * width) eighths = LEVELS * width;
    for (; eighths >= LEVELS; eighths -= LEVELS) fputs(c->utf8 ? "\xe2\x96\x88" : "#", out);
    if (eighths && c->utf8) fprintf(out, "\xe2\x96%c", (char)(0x90 - (int)eighths));
    else if (eighths >= LEVELS / 2) putc('#', out);
    else if (eighths) putc('-', out);
}
