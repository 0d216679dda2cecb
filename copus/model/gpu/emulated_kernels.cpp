// Compiles the GPU kernels and their launches with g++, for the emulated device.
#include "copus/model/gpu/kernels.cu"
