"""The names that the records' Python examples use: valid calls, on the CPU or as fake CUDA tensors."""

import torch

FP8 = torch.float8_e4m3fn


def prefill_names(device):
    return {
        "q": torch.randn(2, 64, 576, device=device).to(FP8),
        "kv": torch.randn(1024, 1, 576, device=device).to(FP8),
        "indices": torch.arange(512, dtype=torch.int32, device=device).view(2, 1, 256),
        "sm_scale": 576**-0.5,
        "q_scale": torch.ones(1, device=device),
        "kv_scale": torch.ones(1, device=device),
        "d_v": 512,
        "attn_sink": torch.zeros(64, device=device),
        "topk_length": torch.tensor([7, 256], dtype=torch.int32, device=device),
        "out": None,
        "max_logits": None,
        "lse": None,
        # memory that views are cut from
        "q_wide": torch.zeros(2, 64, 640, device=device).to(FP8),
        "q_wide_twice": torch.zeros(2, 64, 1152, device=device).to(FP8),
        "kv_pool": torch.zeros(1024, 1, 640, device=device).to(FP8),
        "kv_pool_twice": torch.zeros(1024, 1, 1152, device=device).to(FP8),
        "indices_wide": torch.zeros(2, 1, 512, dtype=torch.int32, device=device),
        "length_pairs": torch.ones(2, 2, dtype=torch.int32, device=device),
        "scales": torch.ones(2, 2, device=device),
        "sinks": torch.zeros(64, 2, device=device),
        "second_pool": None,
    }


def pool_names(device, prefix, kv):
    return {
        kv: torch.randn(40, 512, device=device).to(FP8),
        f"{prefix}indices": torch.arange(9, dtype=torch.int32, device=device),
        f"{prefix}indptr": torch.tensor([0, 4, 4, 9], dtype=torch.int32, device=device),
        f"{prefix}scales": torch.ones(40, 8, device=device),
    }


def decode_names(device, two_pools):
    second = pool_names(device, "second_", "second_kv")
    return {
        "q": torch.randn(3, 16, 512, dtype=torch.bfloat16, device=device),
        **pool_names(device, "kv_", "unified_kv"),
        **(second if two_pools else dict.fromkeys(second)),
        "attn_sink": torch.zeros(16, device=device),
        "softmax_scale": 512**-0.5,
        "d_v": None,
        "out": None,
        "lse": None,
        "second_pool": None,
        # memory that views are cut from
        "q_wide": torch.zeros(3, 16, 640, dtype=torch.bfloat16, device=device),
        "q_wide_twice": torch.zeros(3, 16, 1024, dtype=torch.bfloat16, device=device),
        "pool_twice": torch.zeros(40, 1024, device=device).to(FP8),
        "slot_pairs": torch.zeros(9, 2, dtype=torch.int32, device=device),
        "offset_pairs": torch.tensor([[0, 0], [4, 0], [4, 0], [9, 0]], dtype=torch.int32, device=device),
        "sinks": torch.zeros(16, 2, device=device),
    }


def kv_names(device):
    return {
        "source": torch.randn(40, 512, device=device).to(FP8),
        "source_scales": torch.ones(40, 8, device=device),
        "target": torch.zeros(10, 512, device=device).to(FP8),
        "target_scales": torch.ones(10, 8, device=device),
        "rows": torch.randn(6, 512, dtype=torch.bfloat16, device=device),
        "source_slots": torch.tensor([3, -1, 39, 0, 5, 5], dtype=torch.int32, device=device),
        "target_slots": torch.tensor([9, 8, 7, -1, 1, 0], device=device),
        "remapped": torch.empty(6, dtype=torch.int32, device=device),
        "scales": torch.ones(6, 8, device=device),
        "first_row": 0,
        "scaling": "given",
        "format": "q8kv8_512",
        # memory that views are cut from
        "source_twice": torch.zeros(40, 1024, device=device).to(FP8),
        "target_twice": torch.zeros(10, 1024, device=device).to(FP8),
        "source_scales_twice": torch.ones(40, 16, device=device),
        "target_scales_twice": torch.ones(10, 16, device=device),
        "slot_pairs": torch.zeros(6, 2, dtype=torch.int32, device=device),
    }


def prefill_arguments(names):
    return {key: names[key] for key in ("q", "kv", "indices", "sm_scale", "q_scale", "kv_scale", "d_v", "attn_sink", "topk_length", "out", "max_logits", "lse")}


def decode_arguments(names, general, paged_pool):
    arguments = {key: names[key] for key in ("q", "unified_kv", "kv_indices", "kv_indptr", "attn_sink", "softmax_scale", "kv_scales")}
    if not general:
        return arguments
    arguments |= {"d_v": names["d_v"], "out": names["out"], "lse": names["lse"], "return_lse": True}
    if names["second_kv"] is not None:
        arguments["second_pool"] = paged_pool(names["second_kv"], names["second_indices"], names["second_indptr"], names["second_scales"])
    return arguments
