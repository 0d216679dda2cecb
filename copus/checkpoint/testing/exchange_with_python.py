"""The Python side of python_test.cpp. Exits with 77 where a package is not installed.

safetensors IN OUT   checks that IN holds the tensors that the test wrote; writes their doubles to OUT
transformers DIR...  prints one JSON object per folder: the class that transformers loads it as, its dtype, the keys it
                     missed or did not expect, and for every parameter its shape and sum
ids DIR...           prints one JSON object per folder: the ids of special tokens in its config, its generation config
                     and its tokenizer
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"


def exchange_safetensors(source, destination):
    import numpy
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(source, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}, file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    assert set(tensors) == {"matrix", "half", "step", "scalar", "empty", "mask"}, tensors.keys()
    assert tensors["matrix"].dtype == numpy.float32
    assert (tensors["matrix"] == numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 4).all()
    assert tensors["half"].dtype == numpy.float16 and (tensors["half"] == [1, -2]).all()
    assert tensors["step"].dtype == numpy.int64 and (tensors["step"] == [2**40]).all()
    assert tensors["scalar"].shape == () and tensors["scalar"] == 0.5 and tensors["scalar"].dtype == numpy.float64
    assert tensors["empty"].shape == (0, 4)
    assert tensors["mask"].dtype == numpy.bool_ and (tensors["mask"] == [True, False, True]).all()
    doubles = {name: numpy.asarray(value * 2) for name, value in tensors.items() if name != "mask"}
    save_file(doubles, destination, {"by": "python"})


def load_with_transformers(directories):
    import torch
    from transformers import AutoModelForCausalLM

    for directory in directories:
        model, report = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", output_loading_info=True)
        parameters = {
            name: [list(value.shape), value.to(torch.float64).sum().item()] for name, value in model.named_parameters()
        }
        print(
            json.dumps(
                {
                    "class": type(model).__name__,
                    "dtype": str(next(model.parameters()).dtype),
                    "problems": sorted(str(item) for kind in report.values() for item in kind),
                    "parameters": parameters,
                }
            )
        )


def print_ids(directories):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    for directory in directories:
        sources = {"config": AutoConfig, "generation_config": GenerationConfig, "tokenizer": AutoTokenizer}
        loaded = {name: source.from_pretrained(directory) for name, source in sources.items()}
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        print(json.dumps({name: [getattr(each, id) for id in ids] for name, each in loaded.items()}))


try:
    if sys.argv[1] == "safetensors":
        exchange_safetensors(*sys.argv[2:])
    elif sys.argv[1] == "ids":
        print_ids(sys.argv[2:])
    else:
        load_with_transformers(sys.argv[2:])
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)
