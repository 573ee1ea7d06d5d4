//! Layouts, codes and frames, held to the kernel's headers, to published vectors and to properties.

mod cm;
mod decode;
mod frames;
mod mlx5_ifc;
