"""What ringtune does with GPUs beyond the native runtime; nothing here imports a library of CUDA by itself."""
