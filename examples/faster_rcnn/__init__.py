"""A small Faster R-CNN in Keras: Ren et al. 2015, arXiv:1506.01497."""
