//! Values of a call in a hash, each of which ends where its length says.

use blake3::Hasher;
use ledge_base::tensor::Tensor;

/// Adds a number.
pub(crate) fn number(hasher: &mut Hasher, number: usize) {
    hasher.update(&(number as u64).to_le_bytes());
}

/// Adds bytes, behind their length.
pub(crate) fn add(hasher: &mut Hasher, bytes: &[u8]) {
    number(hasher, bytes.len());
    hasher.update(bytes);
}

/// Adds the datatype, the shape and the bytes of a tensor.
pub(crate) fn add_tensor(hasher: &mut Hasher, tensor: &Tensor) {
    add(hasher, tensor.datatype().as_str().as_bytes());
    number(hasher, tensor.shape().len());
    for &dim in tensor.shape() {
        number(hasher, dim);
    }
    add(hasher, tensor.data());
}
