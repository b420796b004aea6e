#include <cstdio>
int main() { std::puts("kvcodec"); }
