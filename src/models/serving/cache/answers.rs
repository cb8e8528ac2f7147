//! The answers of one cache, and their size.

use std::sync::Arc;
use std::time::Instant;

use ledge_base::tensor::Tensor;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::serving::cache::key::CacheKey;

/// Bytes of an entry besides its tensors: the key in the table and in a list, the entry, and their allocations.
const ENTRY_OVERHEAD: u64 = 256;

/// Bytes of a tensor besides its data and dimensions: itself, and the allocations of both.
const TENSOR_OVERHEAD: u64 = 160;

/// An answer's tensors, in the order asked for.
pub type CachedOutputs = Arc<[Tensor]>;

pub(super) type AnswerCache = Cache<CacheKey, CachedAnswer, CachedAnswerWeighter>;

#[derive(Debug, Clone)]
pub(super) struct CachedAnswer {
    pub(super) outputs: CachedOutputs,
    pub(super) made: Instant,
    pub(super) bytes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct CachedAnswerWeighter;

impl Weighter<CacheKey, CachedAnswer> for CachedAnswerWeighter {
    fn weight(&self, _: &CacheKey, entry: &CachedAnswer) -> u64 {
        entry.bytes
    }
}

/// Bytes that an entry of these tensors takes in memory.
pub(super) fn stored_bytes(outputs: &[Tensor]) -> u64 {
    let of_tensor = |tensor: &Tensor| TENSOR_OVERHEAD + (tensor.data().len() + size_of_val(tensor.shape())) as u64;
    outputs.iter().map(of_tensor).sum::<u64>() + ENTRY_OVERHEAD
}
