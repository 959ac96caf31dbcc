// In builds without an HTTP server, such as the Python package's.
#include <stdexcept>

#include "catalog/server.h"

namespace sparse_mla::catalog {

void serve(const ServeOptions&) {
  throw std::runtime_error("this build has no HTTP server; write the site with `catalog build DIR` and open index.html");
}

}  // namespace sparse_mla::catalog
