#include "lib/entropy/huffman_kernels.hpp"
