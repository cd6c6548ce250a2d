"""Models, data, experiments and figures: reruns the paper and studies which curvature helps."""
