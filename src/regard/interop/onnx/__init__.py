"""ONNX graphs of Regard's models (https://onnx.ai), in files that onnxruntime and transformers.js read."""
