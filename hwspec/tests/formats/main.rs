//! Layouts, codes and frames, checked against the kernel's headers, published vectors and properties.

mod cm;
mod decode;
mod frames;
mod mlx5_ifc;
