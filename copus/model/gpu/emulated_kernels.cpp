// The GPU kernels and their launches as g++ compiles them, for the emulated device.
#include "copus/model/gpu/kernels.cu"
