"""What a model's configuration tells of its caches: what it does not tell, or not of all layers, is left out. Without torch."""

import re
import unittest
from types import SimpleNamespace as Config

from common import ROOT, Case

import kvc
from kvc.facts import config_of, facts_of, pairing_of_architecture

ROPE = {"rope.k": "post", "rope.pairing": "halves", "rope.pairing-assumed": True}


class OfLayers(Config):
    """A configuration that raises what transformers raises for values of single layers, which is no AttributeError."""

    def __getattribute__(self, name):
        if name in object.__getattribute__(self, "raises"):
            raise RuntimeError(f"'{name}' is a per-layer attribute and may vary across layers")
        return super().__getattribute__(name)


class TestFacts(Case):
    def test_all(self):
        config = Config(_name_or_path="a/model", model_type="llama", num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                        head_dim=16, rope_parameters={"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0})
        due = {**ROPE, "model.name": "a/model", "model.architecture": "llama", "model.layers": 3, "model.heads": 4, "model.kv-heads": 2,
               "model.head-dim": 16, "rope.theta": 5e5, "rope.type": "yarn", "rope.factor": 4.0}
        for model in (config, Config(config=config)):
            self.assertEqual(facts_of(model), due)

    def test_scaling(self):
        """What a type of scaling needs beyond its factor."""
        def of(**rope):
            return {key: value for key, value in facts_of(Config(rope_parameters=rope)).items() if key not in ROPE}

        self.assertEqual(of(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096, beta_slow=1, beta_fast=32),
                         {"rope.type": "yarn", "rope.factor": 4.0, "rope.original-context": 4096, "rope.scaling": '{"beta_fast":32,"beta_slow":1}'})
        self.assertEqual(of(rope_type="default", mrope_section=[2, 3, 3]), {"rope.type": "mrope", "rope.sections": (2, 3, 3)})
        self.assertEqual(of(type="mrope", mrope_section=(2, 3, 3), mrope_interleaved=True),
                         {"rope.type": "imrope", "rope.sections": (2, 3, 3)})
        self.assertEqual(of(rope_type="longrope", short_factor=[1.0], long_factor=[2.0], mrope_section="none"),
                         {"rope.type": "longrope", "rope.scaling": '{"long_factor":[2.0],"short_factor":[1.0]}'})
        self.assertEqual(of(rope_type="dynamic", factor=2.0, odd=object()), {"rope.type": "dynamic", "rope.factor": 2.0})

    def test_values_of_layers(self):
        """Attributes that raise, that are lists of those of layers, or of kinds of layers."""
        names = {"num_hidden_layers": "model.layers", "num_attention_heads": "model.heads", "num_key_value_heads": "model.kv-heads",
                 "head_dim": "model.head-dim", "model_type": "model.architecture", "_name_or_path": "model.name"}
        for name in (*names, "rope_parameters"):
            config = OfLayers(raises=[name], rope_parameters={"rope_theta": 1e4}, **dict.fromkeys(names, 7))
            due = {**ROPE, "rope.theta": 1e4, **dict.fromkeys(names.values(), 7)}
            del due[names.get(name, "rope.theta")]
            self.assertEqual(facts_of(config), due, name)
        kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
        self.assertEqual(facts_of(Config(num_key_value_heads=[4, 2], head_dim=None, rope_parameters=kinds)), {
            **ROPE, "rope.scaling": '{"full_attention":{"rope_theta":1000000.0},"sliding_attention":{"rope_theta":10000.0}}'})
        self.assertEqual(facts_of(Config(rope_parameters=None, _name_or_path="")), ROPE)
        self.assertEqual(facts_of(Config()), ROPE)

    def test_pairing(self):
        """K of some models is paired otherwise, or does not rotate: as libkvc has it."""
        text = (ROOT / "formats/cache/rope_names.c").read_text()
        lists = {name: re.findall('"([^"]+)"', body) for name, body in re.findall(r"(\w+)\[\] = \{(.*?)\}", text, re.S)}
        pairs = lists["transformers_interleaved"]
        for name in {"llama", *(name for names in lists.values() for name in names)}:
            none = name in lists["gguf_none"] + lists["transformers_none"]
            due = "interleaved" if name in pairs else "none" if none else "halves"
            self.assertEqual(pairing_of_architecture(name), due, name)
        for more, due in ((dict(model_type="cohere"), "interleaved"), (dict(model_type="opt"), "none"), (dict(alibi=True), "none"),
                          (dict(alibi=False), "halves"), (dict(model_type="deepseek_v3", kv_lora_rank=32), "none")):
            self.assertEqual(facts_of(Config(**more))["rope.pairing"], due, more)
        latent = facts_of(Config(kv_lora_rank=32, num_key_value_heads=4, head_dim=8, rope_parameters={"rope_theta": 1e4}))
        self.assertEqual({"model.kv-heads", "model.head-dim", "rope.dim"} & set(latent), set())

    def test_rotated_channels(self):
        """Channels that RoPE rotates, where they are not all of a head."""
        part = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
        for more, due in ((dict(head_dim=16, rope_parameters=part), 8), (dict(hidden_size=64, num_attention_heads=4, rope_parameters=part), 8),
                          (dict(head_dim=16, partial_rotary_factor=0.25, rope_parameters={"rope_theta": 1e4}), 4), (dict(rotary_dim=6), 6),
                          (dict(head_dim=16, rope_parameters={**part, "rope_type": "proportional"}), None), (dict(head_dim=None), None),
                          (dict(head_dim=16, rope_parameters={**part, "partial_rotary_factor": 1.0}), None),
                          (dict(rope_parameters=part), None)):
            self.assertEqual(facts_of(Config(**more)).get("rope.dim"), due, more)

    def test_text_models(self):
        """The text model of several, and the name that the whole has."""
        text = Config(num_hidden_layers=2)
        whole = Config(get_text_config=lambda decoder: text, _name_or_path="a/model", num_hidden_layers=9)
        for model in (whole, Config(config=whole)):
            self.assertIs(config_of(model), text)
            self.assertEqual(facts_of(model), {**ROPE, "model.name": "a/model", "model.layers": 2})

        def several(decoder):
            raise ValueError("Multiple valid text configs were found in the model config")

        self.fails(kvc.Code.UNSUPPORTED, "does not tell which text model is meant: Multiple", facts_of, Config(get_text_config=several))


class TestSections(Case):
    """Facts that are lists."""

    def setUp(self):
        super().setUp()
        self.cache = [(memoryview(bytes(256)).cast("B", (1, 2, 4, 32)),) * 2]

    def test_list(self):
        for sections in ((2, 3, 3), [2, 3, 3], "2 3 3", "2,3,3"):
            data = kvc.pack(self.cache, facts={"rope.sections": sections, "rope.scaling": '{"a":1}', "scale.k": 1, "scale.v": 1})
            with kvc.open(data) as f:
                self.assertEqual(f.meta["rope.sections"], "2 3 3")
                self.assertEqual(f.meta["rope.scaling"], '{"a":1}')

    def test_bad(self):
        for sections in ("", "2 x", "2, 3", (1.5,), list(range(17)), "2 ", -1):
            self.fails(kvc.Code.USAGE, "is no list of up to 16 whole numbers", kvc.pack, self.cache, facts={"rope.sections": sections})


if __name__ == "__main__":
    unittest.main()
