"""make_profile: from a causal language model and some texts to a kvc profile; `kvc-profile make`
runs it, and kvc-profile(1) has its options.

A profile says how sensitive a model is to errors in its KV cache, and how its K and V are
distributed. For every layer and KV head it holds a basis in which a uniform step costs the same
everywhere: with C the covariance of the rows of K (before RoPE) or V, and M the Fisher metric E[g
g^T], g being the gradient of log p(a token sampled from the model) with respect to a row, the
decode matrix is U^T M^(-1/2), U the eigenvectors of M^(1/2) C M^(1/2). So an error of 1 in a
coefficient weighs as much as an error of 1 in any other, in the model's own measure, the KL
divergence of its output. That output is the text's continuation and two places of the text said
again, because answers quote what they were given. `kvc-profile learn` then adds predictors of
each layer from the layers before it, learnt from caches of all texts.

The model is anything that transformers loads without the network, attends through its
AttentionInterface, and rotates channel i of K with i + R/2 (RoPE, also of several kinds or none
in some layers). It is not changed. What cannot be described is refused: the angles are checked
against the model, and so is the cache. Not for encoding caches, nor for models with latent or
recurrent attention.

Needs torch, transformers and safetensors; gguf for weights in GGUF."""
import argparse
import os
import sys
import traceback

os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")  # nothing is looked up, no bars are drawn
PACKAGES = "torch", "transformers", "safetensors", "gguf"


def complain(text):
    print(f"kvc-profile: {text}", file=sys.stderr)
    return 2


def missing(error):
    """Says what Python lacks, and how it gets it."""
    name = getattr(error, "name", None) or str(error)
    return complain(f"make needs the Python packages {', '.join(PACKAGES[:3])} and, for GGUF, "
                    f"{PACKAGES[3]}, and {sys.executable} has no {name} ({error}): make a virtual "
                    "environment that has them (python3 -m venv venv; venv/bin/pip install "
                    f"{' '.join(PACKAGES)}), and put its bin first in PATH")


def parse():
    parser = argparse.ArgumentParser(prog="make_profile", description="kvc-profile make runs this.")
    add = parser.add_argument
    add("--tokens", type=int, default=2048, help="of each text's cache (%(default)s)")
    add("--samples", type=int, default=2, help="sampled continuations of a text (%(default)s)")
    add("--measure", type=int, default=0, metavar="N", help="only the first N texts by gradients")
    add("--predict-tokens", type=int, default=1024, help="of a text for predictors (%(default)s)")
    add("--back", type=int, default=1, help="layers that predict a layer, 1 to 7 (%(default)s)")
    add("--float32", action="store_true", help="keep weights in float32, not in bfloat16")
    add("--threads", type=int, default=0, help="threads (0: as torch chooses)")
    add("--resume", action="store_true", help="go on with a run that was interrupted")
    add("--force", action="store_true", help="replace the output; start again")
    add("--quiet", action="store_true", help="print errors only")
    add("--json", nargs="?", const="object", help="as kvc-profile learn prints it")
    add("--keep", action="store_true", help="leave what was measured, for another run")
    add("--state", metavar="FOLDER", help="where an interrupted run goes on (OUTPUT.making)")
    add("--queries", type=int, default=20, help="to keep of each head (%(default)s)")
    add("--reg", type=float, default=0.1,
        help="regularisation of the metric, in its mean diagonal (%(default)s)")
    add("--k-step", type=float, default=1.4, help="step of K, that of V being 1 (%(default)s)")
    add("--seed", type=int, default=0, help="of the sampled continuations (%(default)s)")
    add("--kvc-profile", default="kvc-profile", help="what learns predictors (%(default)s)")
    add("-o", "--output", help="the profile (the user's folder of profiles)")
    add("model", metavar="MODEL", help="a GGUF file, or a folder of a transformers model")
    add("texts", nargs="+", metavar="TEXT")
    return parser, parser.parse_args()


def main():
    parser, arguments = parse()
    if not arguments.output and not arguments.state:
        parser.error("-o or --state is needed")
    if not 0 <= arguments.measure <= len(arguments.texts) or arguments.samples < 1 or \
            arguments.tokens < 129 or arguments.reg <= 0 or arguments.k_step <= 0 or \
            not 1 <= arguments.back <= 7 or arguments.predict_tokens < 5 or \
            not 1 <= arguments.queries <= 64 * (arguments.measure or len(arguments.texts)):
        parser.error("a number is out of range")
    try:
        from model_files import Refusal
        from profile_run import ProfileRun
    except ImportError as e:
        return missing(e)
    try:
        return ProfileRun(arguments).run()
    except KeyboardInterrupt:
        return complain("interrupted; --resume goes on") + 128
    except ImportError as e:  # of gguf, which only some models need
        return missing(e)
    except (Refusal, OSError, ValueError) as e:
        return complain(e)
    except MemoryError as e:
        return complain(f"out of memory ({e})")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:  # Python's own status would be 1, which is another answer of kvc-profile
        traceback.print_exc()
        sys.exit(2)
