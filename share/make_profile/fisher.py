"""fisher.py: what a text says of a model: sums over its rows of K and V and over gradients,
and the bases that follow from the sums of all texts. Not for the model itself
(causal_model.py)."""
import torch

from causal_model import TAP, TOLERANCE, GivenCache, forward, rotate
from model_files import Refusal

# Tokens whose prediction is measured. The metric is of their sum, so this is part of its unit.
CONTINUATION = 512
# Tokens of the text that are said again, for the same measurement, and where they begin, of the
# cached tokens.
RECALL = 256
RECALL_PLACES = 0.05, 0.5
FIRST = 4       # the first tokens are attention sinks, unlike all others, and in no statistic
TAIL = 64       # queries are chosen among those of the last tokens
FLOOR = 1e-6    # least weight of a head, of the mean, should nothing depend on the head
TINY = 1e-100   # no gradient at all, where a logarithm or quotient is taken
POSITIONS = 64  # whose probabilities are computed at a time: vocabularies are large


# --- statistics -----------------------------------------------------------------------------------

class Sums:
    """Sums over texts for K or V of one layer: what mean, covariance and metric are made of. [H,
    D, D] each.

    How large a metric is varies little between most texts, but a rare one's may be a thousand
    times the others', in a few layers, and would decide alone in a plain mean. So a head's
    weight is the median of the texts' weights, and the form of its metric the mean of the
    texts' metrics, each of weight 1."""

    def __init__(self, heads, channels):
        self.count = 0
        self.sum = torch.zeros(heads, channels, dtype=torch.float64)
        self.products = torch.zeros(heads, channels, channels, dtype=torch.float64)
        # the metric of the current text
        self.text = torch.zeros(heads, channels, channels, dtype=torch.float64)
        self.form = torch.zeros(heads, channels, channels, dtype=torch.float64)
        self.weights = []  # of each text, [H]

    def add_rows(self, x):
        x = x.double()
        self.count += x.shape[1]
        self.sum += x.sum(1)
        self.products += x.transpose(1, 2) @ x

    def add_gradients(self, g, share):
        g = g.double()
        self.text += g.transpose(1, 2) @ g * (share / g.shape[1])

    def end_text(self):
        weight = self.text.diagonal(dim1=1, dim2=2).mean(1)
        self.form += self.text / weight.clamp_min(TINY)[:, None, None]
        self.weights.append(weight)
        self.text.zero_()

    def kept(self):
        """What a later run goes on from, between two texts."""
        none = torch.zeros(0, len(self.sum), dtype=torch.float64)
        return {"count": torch.tensor([self.count]), "sum": self.sum, "products": self.products,
                "form": self.form, "weights": torch.stack(self.weights) if self.weights else none}

    def go_on(self, kept):
        self.count = int(kept["count"])
        self.sum, self.products, self.form = kept["sum"], kept["products"], kept["form"]
        self.weights = list(kept["weights"])

    def mean(self):
        return self.sum / self.count

    def covariance(self):
        mean = self.mean()
        return self.products / self.count - mean[:, :, None] * mean[:, None, :]

    def weight(self):
        return torch.stack(self.weights).clamp_min(TINY).log().quantile(0.5, dim=0).exp()

    def metric(self):
        # a text in which a head had no gradient at all says nothing of the form
        texts = (torch.stack(self.weights) > 0).sum(0).clamp_min(1)
        return self.form * (self.weight() / texts)[:, None, None]


def first_seen(gradients):
    """The first cached token that reached any of these gradients [H, n, D]: earlier ones have
    left the window of a sliding layer, and their gradients are exactly 0. Nothing reached: 0,
    the layer does not matter."""
    seen = torch.zeros(gradients[0].shape[1], dtype=torch.bool)
    for g in gradients:
        seen |= (g != 0).any(2).any(0)
    return int(seen.int().argmax())


def fill_probabilities(logits):
    """Turns logits into probabilities, in their own memory."""
    for block in logits.split(POSITIONS):
        block.copy_(block.softmax(-1))
    return logits


def greatest_difference(probabilities, logits):
    return max((p - x.softmax(-1)).abs().sum(-1).max().item()
               for p, x in zip(probabilities.split(POSITIONS), logits.split(POSITIONS)))


def sampled_slope(probabilities, generator):
    """The slope of log p(label) with respect to the logits, for labels that the model itself
    chose, not the text: this makes it the Fisher metric of the KL divergence."""
    label = torch.cat([torch.multinomial(p, 1, generator=generator)
                       for p in probabilities.split(POSITIONS)])
    slope = -probabilities
    return slope.scatter_add_(1, label, torch.ones_like(label, dtype=slope.dtype))


def add_gradients(gradients, layers, angles, positions, share):
    for layer, sums in enumerate(layers):
        k, v = gradients[2 * layer:2 * layer + 2]
        start = max(FIRST, first_seen((k, v)))
        sums["k"].add_gradients(rotate(k, angles[layer], positions, -1)[:, start:], share)
        sums["v"].add_gradients(v[:, start:], share)


def take_rows(rows, angles, tokens, layers):
    """The text's rows into the sums. Returns copies of K and V whose gradients can be
    computed, one after another, and the last queries before RoPE."""
    positions = torch.arange(tokens)
    queries, leaves = [], []
    for layer in range(len(rows)):
        (q, k, v), rows[layer] = rows[layer], None  # frees each layer's
        k, v = k[:, :tokens], v[:, :tokens]
        layers[layer]["k"].add_rows(rotate(k, angles[layer], positions, -1)[:, FIRST:])
        layers[layer]["v"].add_rows(v[:, FIRST:])
        queries.append(rotate(q, angles[layer], positions[-TAIL:], -1))
        leaves += [k.clone().requires_grad_(), v.clone().requires_grad_()]
    return queries, leaves


def measure(model, ids, tokens, samples, generator, angles, layers):
    """One text: its rows and gradients into the sums of `layers`. Returns its last queries per
    layer."""
    with torch.no_grad():
        TAP.start(slice(tokens - TAIL, tokens))
        plain = forward(model, ids, use_cache=False, logits_to_keep=CONTINUATION).logits[0].float()
        queries, leaves = take_rows(TAP.stop(), angles, tokens, layers)
    for place in (tokens, *(int(share * tokens) for share in RECALL_PLACES)):
        said = ids[:, place:place + (CONTINUATION if place == tokens else RECALL)]
        with torch.enable_grad():
            logits = forward(model, said, tokens, GivenCache(leaves), use_cache=True)
            logits = logits.logits[0].float()
        chances = fill_probabilities(logits.detach())
        if place == tokens:
            # The gradients are worth nothing if the model reads the cache in another way than this
            # program fills it.
            difference = greatest_difference(chances, plain)
            if not difference < TOLERANCE:
                raise Refusal(f"with its cache passed in the model answers differently (by "
                              f"{difference:.2g})")
            del plain
        for sample in range(samples):
            gradients = torch.autograd.grad(logits, leaves, sampled_slope(chances, generator),
                                            retain_graph=sample + 1 < samples, allow_unused=True)
            gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients)]
            add_gradients(gradients, layers, angles, torch.arange(tokens), 1 / samples)
    for sums in layers:
        sums["k"].end_text()
        sums["v"].end_text()
    return queries


# --- the basis ------------------------------------------------------------------------------------

def to_int8(x):
    """Rows of x as int8 with one float32 scale each; a row of zeros has the scale 0."""
    scale = (x.abs().amax(-1) / 127).float()
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale)).to(x.dtype)
    return (x / divisor[..., None]).round().clamp(-127, 127).to(torch.int8), scale


def make_basis(covariance, metric, step):
    """Decode matrix as int8 rows and scales, and the variance of its coefficients; all of one
    layer's heads."""
    values, vectors = torch.linalg.eigh(metric)
    # rounding only: the metric is regularised
    values = values.clamp_min(1e-12 * values.amax(-1, keepdim=True))
    root = vectors * values.sqrt()[:, None, :] @ vectors.transpose(1, 2)
    inverse_root = vectors / values.sqrt()[:, None, :] @ vectors.transpose(1, 2)
    axes = torch.linalg.eigh(root @ covariance @ root)[1].transpose(1, 2)  # rows
    decode = axes @ inverse_root * step
    # An eigenvector's sign is the solver's accident: take the one whose largest entry is positive.
    largest = decode.gather(2, decode.abs().argmax(2, keepdim=True))
    basis, scale = to_int8(decode * largest.sign())
    # The encoder will invert what the decoder has, so this is the inverse that counts.
    encode = torch.linalg.inv(basis.double() * scale.double()[..., None])
    variance = (encode * (covariance @ encode)).sum(1)
    variance, order = variance.sort(1, descending=True)
    basis = basis.gather(1, order[..., None].expand_as(basis))
    return basis, scale.gather(1, order), variance.float()


def finish(layers, regularisation, k_step):
    """All tensors but RoPE and queries."""
    tensors = {}
    for role, step in (("k", k_step), ("v", 1.0)):
        floor = FLOOR * torch.stack([x[role].weight().mean() for x in layers]).mean()
        for number, sums in enumerate(layers):
            s = sums[role]
            metric, weight = s.metric(), s.weight()
            extra = (regularisation * weight).clamp_min(floor)
            metric = metric + extra[:, None, None] * torch.eye(metric.shape[1], dtype=metric.dtype)
            basis, scale, variance = make_basis(s.covariance(), metric, step)
            prefix = f"layers.{number}.{role}."
            tensors[prefix + "mean"] = s.mean().float()
            tensors[prefix + "basis"] = basis
            tensors[prefix + "scale"] = scale
            tensors[prefix + "variance"] = variance
            tensors[prefix + "weight"] = (weight + extra).float()
    return tensors


def choose_queries(queries, number):
    """`number` of the queries [text][layer][heads, TAIL, D], evenly over texts and tokens; the
    same in all heads."""
    total = len(queries) * TAIL
    places = [divmod((2 * i + 1) * total // (2 * number), TAIL) for i in range(number)]
    return [torch.stack([queries[text][layer][:, token] for text, token in places], 1)
            for layer in range(len(queries[0]))]
