"""What can be known of a model without a GPU and without ONNX Runtime: plans, work and memory, its graph in text and pictures."""
