"""VoxCPM for voxagent: our own PyTorch code for the published checkpoints, many sessions in one step loop.

Everything but `model` and `options` needs only torch, numpy, safetensors and tokenizers; nothing is imported here.
"""
