// Calls the linear layer of an engine's library: DRIVER LIBRARY ROWS COLUMNS OUTPUTS < weight, x, bias > y
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

static std::vector<float> read(size_t count) {
    std::vector<float> values(count);
    if (std::fread(values.data(), sizeof(float), count, stdin) != count) std::exit(2);
    return values;
}

int main(int, char** given) {
    void* library = dlopen(given[1], RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    auto columns_of_panel = reinterpret_cast<int64_t (*)()>(dlsym(library, "regard_panel_columns"));
    auto pack = reinterpret_cast<void (*)(const float*, int64_t, int64_t, int64_t, float, float*)>(
        dlsym(library, "regard_pack"));
    auto linear = reinterpret_cast<void (*)(const int64_t*, const int64_t*, int)>(dlsym(library, "regard_linear"));
    const int64_t rows = std::atoll(given[2]), columns = std::atoll(given[3]), outputs = std::atoll(given[4]);
    const int64_t panel = columns_of_panel(), padded = (outputs + panel - 1) / panel * panel;
    std::vector<float> weight = read(outputs * columns), x = read(rows * columns), bias = read(outputs);
    std::vector<float> packed(padded * columns), y(rows * outputs);
    bias.resize(padded);
    pack(weight.data(), outputs, columns, 0, 1.0f, packed.data());
    auto address = [](const std::vector<float>& values) { return reinterpret_cast<int64_t>(values.data()); };
    const int64_t layer[] = {address(packed), address(bias), 0, 0, 0, columns, outputs};
    const int64_t arguments[] = {address(x), address(y), rows};
    linear(layer, arguments, 2);
    std::fwrite(y.data(), sizeof(float), y.size(), stdout);
    return 0;
}
