"""Models of other libraries in, Regard's models out: Hugging Face, CTranslate2, ONNX."""
