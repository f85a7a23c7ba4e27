"""Devices, threads, processes, memory and CUDA graphs."""
