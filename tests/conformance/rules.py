"""rules.py: what each numbered rule of the specification is tested by. Of make_files.py, for the index, and of check_rules.py."""

import fnmatch

# Rule: patterns of names of files of the set, without .kvc; or FILE:TEST, a test of kvc's own where no file of the container can show
# the rule: a function of a unit test, or a test of the command line.
RULES = {
    # formats/container/FORMAT.md
    "F1": "bad-zstd-window bad-zstd-dictionary bad-block-plane-window good-zstd-window",
    "F2": "unsupported-*-reserved* unsupported-meta-critical-bits unsupported-record-flags bad-pad-byte bad-section-padding",
    "F3": """bad-align-* bad-*empty bad-magic bad-text-mode bad-cut-* bad-header-check bad-footer-* bad-order-* bad-two-* bad-no-* bad-missing-block
        bad-extra-block bad-cells-* bad-side-* bad-meta-* bad-table-* bad-layer-* bad-tensor-* bad-region-* bad-rotation-* bad-positions-*
        bad-words-* bad-tokens-* bad-source-* bad-literals-* bad-keys-* bad-parent-* bad-space-* good-keys* good-space* bad-write-version bad-same-* bad-block-*
        good-source-bytes good-small good-no-parts good-empty good-one-token good-tokens-* good-ragged-blocks good-full-block good-unordered
        good-negative-positions good-words good-streams good-kinds good-dtypes-* good-dims good-heads-first good-blocks-across-heads
        good-planes good-zstd-raw good-two-pipelines good-own-zstd good-index-zstd good-rotation good-write-version""",
    "F4": "bad-tensor-block",
    "F5": """bad-tensor-row bad-tensor-rows bad-cells-huge bad-cells-beyond-blocks bad-pipeline-long bad-pipelines bad-rotations bad-align-2m
        bad-extents-member-long bad-literals-long bad-region-size bad-bomb""",
    "F6": "bad-trailing-byte bad-twice",
    "F7": "unsupported-read-version unsupported-version-0 good-write-version",
    "F8": "unsupported-grid",
    "F9": "unsupported-features good-features",
    "F10": "tests/unit/test_files.c:features_of_writers",
    "F11": "tests/unit/test_files.c:features_of_writers",
    "F12": "bad-content-id",
    "F13": "good-section-optional",
    "F14": """bad-section-* bad-record-* bad-directory-beyond bad-meta-subject bad-meta-number bad-meta-digest bad-meta-two-sections
        bad-meta-section bad-cells-number bad-cells-part bad-cells-sections bad-pad-sections bad-no-digest-digest bad-store-size""",
    "F15": "bad-bomb",
    "F16": "bad-zstd-short bad-zstd-long bad-zstd-two-frames bad-zstd-frame bad-block-plane-* bad-finite-claim bad-*-frame",
    "F17": "unsupported-record-type unsupported-record-sealed",
    "F18": "good-unknown-record* bad-skipped-check good-optional-first",
    "F19": "good-align-4k good-align-unaligned",
    "F20": "bad-arguments-* bad-pipeline-*",
    "F21": "good-table-longer",
    "F22": "bad-table-shorter",
    "F23": """bad-split-* bad-fast-* bad-quant-* bad-floats-* bad-finite-* bad-sink-* bad-tail-* bad-kept-* bad-outlier-* bad-lowrank-*
        bad-prune-* bad-saliency-* bad-merge-* bad-project-* bad-cross-* bad-predict-* bad-center-* bad-basis-* bad-derope-* bad-code-*
        bad-steps-* bad-block-*
        good-split-* good-fast-* good-quant-* good-floats-* good-finite* good-sink* good-tail* good-outlier-* good-lowrank* good-prune*
        good-saliency good-merge* good-cross* good-predict* good-center* good-basis* good-derope* good-code* good-steps*""",
    "F24": "bad-same-reference good-same*",
    "F25": "unsupported-needs",
    "F26": "bad-extents-canonical",
    "F27": "bad-extents-* bad-literals-first good-extents-* good-no-source",
    "F28": "tests/cli/profile-embedded",
    "F29": "bad-cross-profile-other good-profile-beside good-profile-other good-profile-sections tests/cli/profile-wrong",
    "F30": """bad-cross-profile-unnamed bad-cross-profile-version-0 bad-cross-profile-columns bad-cross-inputs-width
        bad-predict-residual-missing good-rotation-profile bad-derope-profile bad-basis-none bad-center-none tests/cli/profile-missing""",
    "F31": "bad-index-* bad-spliced-*",
    "F32": "tests/unit/test_container.c:every_dtype_and_ragged_size good-no-digest",
    "F33": "bad-record-check bad-block-check bad-skipped-check bad-block-digest bad-block-row",
    "F34": "unsupported-meta-critical unsupported-meta-critical-known",
    "F35": "tests/unit/test_files.c:good_files good-unknown-key",
    "F36": "tests/unit/test_scales.c:values_are_what_is_stored_times_scales",
    "F37": "tests/unit/test_scales.c:without_scales_there_are_no_values",
    "F38": "bad-cross-profile-gain tests/unit/test_profile_refused.c:predictors",
    "F39": "tests/unit/test_join.c:sets_tell_shards_apart",
    "F40": "bad-layer-* bad-tensor-twice good-layer-* good-kinds",
    "F41": "bad-positions-limit* bad-tokens-first bad-parent-far bad-parent-limit good-positions-limits",
    "F42": "bad-region-* bad-extents-region-* bad-extents-place-heads good-region-one-step good-heads-first",
    "F43": "bad-tensor-finite bad-tensor-quant bad-tensor-basis bad-tensor-lowrank bad-tensor-outlier good-saliency-codes",
    "F44": "bad-profile-twice bad-profile-late bad-profile-between good-profile-unnamed",
    "F45": "good-quant-nan",
    # formats/container/IDS.md
    "I1": "unsupported-stage*",
    "I2": "unsupported-section-coder unsupported-block-coder unsupported-side-byte-coder good-signature-coder good-profile-sections bad-section-unknown bad-block-unknown",
    "I3": "good-section-optional good-unknown-record",
    "I4": "unsupported-needs",
    "I5": "good-signature*",
    "I6": """unsupported-dtype* unsupported-role unsupported-part-kind unsupported-layer-kind unsupported-record-type unsupported-features
        unsupported-read-version unsupported-grid""",
    "I7": "unsupported-meta-type unsupported-meta-critical*",
    "I9": "unsupported-cross-profile",
    "I8": "tests/unit/test_files.c:good_files good-unknown-key",
    # formats/cache/KEYS.md
    "K1": "bad-parent-first bad-parent-zero bad-parent-far bad-parent-no-first good-parent*",
    "K2": "good-keys-none-late bad-keys-late good-parent-elsewhere",
    "K3": "bad-extras-* good-extras*",
    "K4": "bad-keys-identity bad-parent-identity bad-identity-* good-identity* good-keys-none",
    "K5": "good-space-rope-* bad-space-rope-*",
    # formats/store/STORE.md
    "S1": "tests/unit/test_store_proof.c:tenants",
    "S2": "tests/unit/test_store_proof.c:forms_of_namespaces",
    "S3": "tests/unit/test_store_proof.c:forged",
    # codecs/*.md
    "rans 1": "bad-split-state",
    "rans 2": "bad-split-end-state",
    "rans 3": "bad-split-end-* bad-split-stream-* bad-split-codes-tail bad-cross-codes-flipped",
    "rans 4": "bad-split-stream-short bad-cross-codes-cut",
    "rans 5": "bad-split-table-long-form bad-split-params-long-form",
    "rans 6": "bad-split-table-level* bad-split-table-sum bad-split-table-nothing bad-split-table-one-symbol",
    "floats 1": "bad-floats-*",
    # codecs/stages
    "basis 1": "bad-basis-*",
    "center 1": "bad-center-none",
    "code 1": "bad-arguments-step bad-code-*",
    "cross 1": "bad-cross-inputs-self bad-cross-inputs-later bad-cross-inputs-part bad-cross-inputs-dtype bad-cross-inputs-role",
    "cross 2": "bad-cross-position",
    "cross 3": "bad-cross-inputs-* bad-cross-profile-*",
    "cross 4": "bad-cross-q8_0-*",
    "cross 5": "bad-cross-inputs-missing bad-split-params-ahead",
    "derope 1": "bad-derope-*",
    "fast 1": "bad-fast-escapes-beyond bad-fast-escapes-far",
    "finite 1": "bad-finite-*",
    "predict 1": "bad-predict-*",
    "channels 1": "bad-split-params-*",
    # codecs/papers
    "lowrank 1": "bad-arguments-exact",
    "merge 1": "bad-merge-*",
    "outlier 1": "bad-outlier-*",
    "project 1": "bad-project-*",
    "prune 1": "bad-prune-mask-*",
    "saliency 1": "bad-saliency-*",
}


def is_test(word):
    return word.startswith("tests/")


def matches(name, pattern):
    return fnmatch.fnmatchcase(name, pattern)


def of(name):
    """The rules that the file of this name is about."""
    return [rule for rule, words in RULES.items() if any(matches(name, word) for word in words.split())]
