"""Small random models of each family, and batches with padding."""

import pytest
import torch
from torch import nn

VOCABULARY = 40
_SIZES = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
# Name: (class, configuration class, settings).
TEXT = {
    "bert": ("BertModel", "BertConfig", _SIZES),
    "roberta": ("RobertaModel", "RobertaConfig", _SIZES),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {
            "dim": 16,
            "n_heads": 4,
            "n_layers": 2,
            "hidden_dim": 16,
            "vocab_size": VOCABULARY,
        },
    ),
    "gpt2": (
        "GPT2Model",
        "GPT2Config",
        {
            "n_embd": 16,
            "n_head": 4,
            "n_layer": 2,
            "n_positions": 32,
            "vocab_size": VOCABULARY,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mistral": ("MistralModel", "MistralConfig", {**_GROUPED, "sliding_window": 3}),
    "qwen2": ("Qwen2Model", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Model", "Qwen3Config", {**_GROUPED, "head_dim": 4}),
    "gpt_neox": ("GPTNeoXModel", "GPTNeoXConfig", _SIZES),
    "phi3": ("Phi3Model", "Phi3Config", _GROUPED),
}
CAUSAL = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "gpt_neox", "phi3"}
ROTARY = {"llama", "mistral", "qwen2", "qwen3", "gpt_neox", "phi3"}


def hugging_face(name, seed=0, **changes):
    """Return a random model; biases and weights are large enough to matter."""
    transformers = pytest.importorskip("transformers")
    model, config, settings = TEXT[name]
    torch.manual_seed(seed)
    made = getattr(transformers, model)(
        getattr(transformers, config)(**{**settings, **changes})
    )
    return shaken(made)


def vision(seed=0):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {k: v for k, v in _SIZES.items() if k in transformers.ViTConfig().to_dict()}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4)
    return shaken(transformers.ViTModel(config))


def shaken(model):
    """Add noise to all parameters, so that no bias is zero and no head is flat."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def text_batch(padding="right", n_rows=3, n_tokens=7):
    ids = torch.randint(3, VOCABULARY, (n_rows, n_tokens))
    mask = torch.ones_like(ids)
    if padding:
        n_pad = torch.arange(n_rows) * 2
        position = torch.arange(n_tokens).expand(n_rows, -1)
        if padding == "right":
            mask = (position < n_tokens - n_pad[:, None]).long()
        else:
            mask = (position >= n_pad[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


class TimmAttention(nn.Module):
    """Attention laid out as timm's, written anew."""

    def __init__(self, d_model=16, num_heads=4, qk_norm=False, causal=False):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.scale = (d_model // num_heads) ** -0.5
        self.qkv = nn.Linear(d_model, 3 * d_model)
        norm = nn.LayerNorm if qk_norm else nn.Identity
        self.q_norm, self.k_norm = (
            norm(d_model // num_heads),
            norm(d_model // num_heads),
        )
        self.proj = nn.Linear(d_model, d_model)
        self.attn_drop = nn.Dropout(0.5)

    def forward(self, x, attn_mask=None):
        b, n, d = x.shape
        q, k, v = (
            self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(
            self.q_norm(q),
            self.k_norm(k),
            v,
            attn_mask=attn_mask,
            is_causal=self.causal,
            dropout_p=self.attn_drop.p if self.training else 0.0,
        )
        return self.proj(mixed.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    """A pre-norm block around any attention layer."""

    def __init__(self, attention, d_model=16):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(d_model), attention

    def forward(self, x, **options):
        return x + self.attn(self.norm(x), **options)


class Stack(nn.Module):
    def __init__(self, *attentions):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, attentions))

    def forward(self, x, **options):
        for block in self.blocks:
            x = block(x, **options)
        return x
