/* pack_help.c: the help texts of kvc-pack. Not for its options (kvc-pack.c). */
#include "cli/pack_job.h"

#include "codecs/presets.h"

#include <string.h>

enum { SUMMARY_COLUMN = 19 };

static const char brief[] = "Usage: kvc-pack [OPTION]... [FILE]...\n"
                            "Pack KV-cache files into .kvc containers: FILE into FILE.kvc, or standard input\n"
                            "to standard output. Lossless unless a recipe says otherwise.\n"
                            "\n"
                            "  -r, --recipe=RECIPE     split (default), fast, zstd, store; lossy ones with a\n"
                            "                          profile: near-lossless, small, tiny\n"
                            "      --profile=FILE      the model's profile\n"
                            "      --target-ratio=R    with such a recipe: make the file R times smaller\n"
                            "      --curve             pack nothing: print ratio and error of every preset\n"
                            "      --model=FILE        the model's weights: geometry and RoPE facts\n"
                            "  -o, --output=FILE       write to FILE\n"
                            "  -c, --stdout            write to standard output\n"
                            "  -f, --force             replace existing files, write to a terminal\n"
                            "      --rm                remove each input once its .kvc is complete\n"
                            "      --skip-existing     leave inputs alone whose output exists\n"
                            "  -t, --test              do everything but write\n"
                            "  -T, --threads=N         threads; 0: one per core (default)\n"
                            "  -q, --quiet             no notes, no progress; errors only\n"
                            "  -v, --verbose           say what was done\n"
                            "  -V, --version           print the version\n"
                            "\n"
                            "All options and examples: kvc-pack --help. The manual: man kvc-pack.\n";

static const char help[] = "Usage: kvc-pack [OPTION]... [FILE]...\n"
                           "Pack KV-cache files into .kvc containers: FILE into FILE.kvc, or standard input\n"
                           "to standard output. Lossless unless a recipe says otherwise.\n"
                           "\n"
                           "Coding:\n"
                           "  -r, --recipe=RECIPE     stages that code the cache: split (default), fast,\n"
                           "                          zstd, store (as it is), a preset, or what\n"
                           "                          kvc-recipes(7) says; the default is cross with a\n"
                           "                          --profile that predicts\n"
                           "      --target-kld=K      transform codec: the step that drifts by about K nats\n"
                           "                          (an estimate)\n"
                           "      --target-ratio=R    transform codec: the step that makes the file R times\n"
                           "                          smaller\n"
                           "      --max-error=E       transform codec: the coarsest step with an attention\n"
                           "                          output error (p99, as kvc-diff has it) of at most E;\n"
                           "                          logit:E: of the logits\n"
                           "      --queries=FILE      queries for recipes that ask attention, out of another\n"
                           "                          cache file\n"
                           "      --embed-profile     carry the --profile inside, so that the .kvc stands\n"
                           "                          alone\n"
                           "      --force-profile     pack with a --profile that does not fit the cache's\n"
                           "                          numbers\n"
                           "      --learn-profile=OUT write a profile made from the FILEs, of one model, and\n"
                           "                          pack nothing; with --profile: add predictors to that\n"
                           "                          profile\n"
                           "      --learn-layers=N    predict each layer from N layers before it (0 to 7,\n"
                           "                          default 1)\n"
                           "      --join[=tokens|heads]\n"
                           "                          pack the FILEs, consecutive blocks of one text, into\n"
                           "                          one .kvc; heads: they hold the KV heads of\n"
                           "                          tensor-parallel ranks\n"
                           "      --append=OLD.kvc    pack OLD.kvc and the FILEs that follow it into a new\n"
                           "                          .kvc, by the recipe of OLD.kvc, whose blocks are\n"
                           "                          copied\n"
                           "      --curve[=OUT.svg]   pack nothing: print ratio and error of FILE by every\n"
                           "                          preset, and mark the recipe of the options;\n"
                           "                          OUT.svg: also draw them\n"
                           "      --dequantize        make K and V of block types and of 8 bits f16\n"
                           "                          first\n";

static const char help_files[] = "\n"
                                 "Files:\n"
                                 "  -o, --output=FILE       write to FILE\n"
                                 "  -c, --stdout            write to standard output\n"
                                 "      --output-dir=DIR    write to files in DIR, which is made if need be; files\n"
                                 "                          below a folder keep their places\n"
                                 "      --suffix=SUFFIX     in place of .kvc\n"
                                 "      --recursive         of a folder: pack each file below it, but for .kvc and\n"
                                 "                          profiles; else a folder is one cache\n"
                                 "      --files-from=FILE   also the files that FILE names, one a line; - is\n"
                                 "                          standard input\n"
                                 "  -0, --null              names in it end with a NUL byte, as of find -print0\n"
                                 "  -f, --force             replace existing files, write to a terminal\n"
                                 "  -k, --keep              keep the input (default)\n"
                                 "      --rm                remove each input once its .kvc is complete; with a\n"
                                 "                          lossy recipe only where -f is given as well\n"
                                 "      --skip-existing     leave inputs alone whose output exists; no error\n"
                                 "  -t, --test              do everything but write\n"
                                 "  -T, --threads=N         threads; 0: one per core (default)\n"
                                 "      --align=SIZE        start extents on multiples of SIZE, e.g. 4k for\n"
                                 "                          O_DIRECT\n"
                                 "      --no-verify         do not decode what was encoded, nor compare values of\n"
                                 "                          a .kvc that is packed anew with their digests\n"
                                 "      --no-tokens         leave the token ids out, and with them the source\n"
                                 "                          file's own bytes, which hold them too; their prefix\n"
                                 "                          keys stay\n"
                                 "      --tokens=A:B        pack positions A to B-1 only, without the source\n"
                                 "                          file's own bytes\n"
                                 "      --layers=LIST       pack these layers only, e.g. 0-3,7; likewise\n"
                                 "      --token-ids=FILE    the token ids of a cache that holds none: a file of\n"
                                 "                          numbers, JSON of an engine, or another cache\n"
                                 "      --companions=no     leave queries and hidden states out, and with them the\n"
                                 "                          source file's own bytes; recipes still ask them\n"
                                 "                          (default yes)\n"
                                 "      --fingerprint=HOW   hash the --model file: sampled (default) or full\n"
                                 "      --json[=lines]      print a report as JSON; lines: an object a line\n"
                                 "  -q, --quiet             no notes, no progress; errors only\n"
                                 "  -v, --verbose           say what was done\n"
                                 "  -h                      print the most used options\n"
                                 "      --help              print this text\n"
                                 "  -V, --version           the version; with -v also kernels and stages\n"
                                 "\n";

static const char end_of_help[] = "\n"
                                  "Exit status: 0 ok, 2 trouble.\n"
                                  "\n"
                                  "Examples:\n"
                                  "  kvc-pack slot.bin                       slot.bin.kvc, lossless\n"
                                  "  kvc-pack -r small --profile=model.kvcp slot.bin\n"
                                  "                                          about ten times smaller, lossy\n"
                                  "  kvc-pack --skip-existing *.bin          only what was not packed before\n"
                                  "  tar c folder | kvc-pack >folder.kvc     a cache of several files, in a pipe\n";

int pack_help(int opt) {
    if (opt == 'h') return cli_help(opt, brief, help, "");
    fputs(help, stdout);
    fputs(help_files, stdout);
    cli_print_input_help();
    puts("\nPresets, recipes of the papers (lossy):");
    for (size_t i = 0; kvc_preset_at(i); i++) {
        printf("  %s", kvc_preset_at(i)->name);
        cli_print_wrapped((int)strlen(kvc_preset_at(i)->name) + 2, SUMMARY_COLUMN, kvc_preset_at(i)->summary);
    }
    fputs(end_of_help, stdout);
    return cli_finish(EXIT_SAME);
}
