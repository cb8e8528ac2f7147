//! Cache keys: two requests have the same key only if their answers are equal.
//!
//! BLAKE3-256 over every part with its length before it, so that no two lists of parts give the same bytes. The bytes
//! come from outside; a shorter or faster hash could be made to collide, and a caller would get the answer of another
//! request.

use std::hash::Hash;
use std::sync::Arc;

use blake3::Hasher;
use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::ModelPort;
use ledge_engine::pipeline::content::CallContent;
use ledge_service::off_thread::blocking;

use crate::digest::{add, add_tensor, number};
use crate::scheduling::terms::Priority;
use crate::serving::inputs::FittedRequest;

/// Bytes from which on hashing is done off the async threads: this many take some tenths of a millisecond.
const OFF_THREAD_HASH_BYTES_MIN: usize = 1 << 20;

/// The key of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheKey([u8; 32]);

impl Hash for CacheKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl CacheKey {
    /// The key among the requests of one caller: no caller may learn that another one asked the same.
    #[must_use]
    pub fn of_caller(self, caller: &Principal) -> Self {
        Self(*Hasher::new_keyed(&self.0).update(caller.to_string().as_bytes()).finalize().as_bytes())
    }

    /// The key under which callers of `priority` wait for each other.
    pub(super) fn of_priority(mut self, priority: Priority) -> Self {
        if let (Priority::Batch, [first, ..]) = (priority, &mut self.0) {
            // Finding two keys that differ only in this bit is as hard as finding two that are equal.
            *first ^= 1;
        }
        self
    }
}

/// Makes the keys of one loaded version.
#[derive(Debug)]
pub struct CacheKeyBuilder {
    /// Hash of everything that is the same for every request of the version.
    version: [u8; 32],
    /// The names of its inputs.
    inputs: Vec<String>,
}

impl CacheKeyBuilder {
    /// For a version with these inputs. `identity` is all that its answers depend on besides the request: its name and
    /// version, the digest of its files, its config, the runtime.
    pub fn new(identity: &[&str], inputs: &[ModelPort]) -> Self {
        let mut hasher = Hasher::new_derive_key("ledge response cache, 2026: version");
        for part in identity {
            add(&mut hasher, part.as_bytes());
        }
        Self { version: *hasher.finalize().as_bytes(), inputs: inputs.iter().map(|port| port.name.clone()).collect() }
    }

    /// The key of tensors that fit the version.
    ///
    /// Left out, because the outputs do not depend on them: the request's id, priority and timeout, how its tensors
    /// travel, and classifications, which are made from the cached outputs.
    pub async fn of_tensors(self: &Arc<Self>, fitted: &FittedRequest) -> CacheKey {
        if fitted.inputs.iter().map(|tensor| tensor.data().len()).sum::<usize>() < OFF_THREAD_HASH_BYTES_MIN {
            return self.tensors(&fitted.inputs, &fitted.outputs);
        }
        let (keys, inputs, outputs) = (self.clone(), fitted.inputs.clone(), fitted.outputs.clone());
        blocking(move || keys.tensors(&inputs, &outputs)).await
    }

    /// The key of the content of a call as it came, undecoded.
    pub async fn of_content(self: &Arc<Self>, content: &CallContent) -> CacheKey {
        if content.bytes() < OFF_THREAD_HASH_BYTES_MIN {
            return self.content(content);
        }
        let (keys, content) = (self.clone(), content.clone());
        blocking(move || keys.content(&content)).await
    }

    fn tensors(&self, inputs: &[Tensor], outputs: &[usize]) -> CacheKey {
        let mut hasher = self.hasher("tensors");
        number(&mut hasher, outputs.len());
        for &output in outputs {
            number(&mut hasher, output);
        }
        number(&mut hasher, inputs.len());
        for (name, tensor) in self.inputs.iter().zip(inputs) {
            add(&mut hasher, name.as_bytes());
            add_tensor(&mut hasher, tensor);
        }
        CacheKey(*hasher.finalize().as_bytes())
    }

    fn content(&self, content: &CallContent) -> CacheKey {
        // Each text has its length before it.
        let mut hasher = self.hasher(content.form().as_str());
        add(&mut hasher, content.data());
        CacheKey(*hasher.finalize().as_bytes())
    }

    fn hasher(&self, kind: &str) -> Hasher {
        let mut hasher = Hasher::new_keyed(&self.version);
        add(&mut hasher, kind.as_bytes());
        hasher
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use ledge_base::tensor::DataType;
    use ledge_engine::pipeline::content::Texts;

    fn port(name: &str) -> ModelPort {
        ModelPort { name: name.to_owned(), datatype: DataType::Uint8, shape: vec![-1] }
    }

    fn key_of(identity: &[&str], ports: &[ModelPort], inputs: Vec<Tensor>, outputs: Vec<usize>) -> CacheKey {
        let fitted = FittedRequest { inputs, outputs, batch: 1 };
        Arc::new(CacheKeyBuilder::new(identity, ports)).of_tensors(&fitted).now_or_never().unwrap()
    }

    fn tensor(datatype: DataType, shape: &[usize], data: &[u8]) -> Tensor {
        Tensor::new(datatype, shape.to_vec(), Bytes::copy_from_slice(data)).unwrap()
    }

    #[test]
    fn every_part_of_a_request_changes_the_key() {
        let (a, b) = ([port("a")], [port("b")]);
        let base = || tensor(DataType::Uint8, &[2, 2], &[0, 1, 0, 1]);
        let keys = [
            key_of(&["m", "1"], &a, vec![base()], vec![0, 1]),
            key_of(&["m", "2"], &a, vec![base()], vec![0, 1]),
            key_of(&["m1", ""], &a, vec![base()], vec![0, 1]),
            key_of(&["m", "1"], &b, vec![base()], vec![0, 1]),
            key_of(&["m", "1"], &a, vec![base()], vec![1, 0]),
            key_of(&["m", "1"], &a, vec![base()], vec![0]),
            key_of(&["m", "1"], &a, vec![base()], vec![]),
            key_of(&["m", "1"], &a, vec![tensor(DataType::Uint8, &[4], &[0, 1, 0, 1])], vec![0, 1]),
            key_of(&["m", "1"], &a, vec![tensor(DataType::Uint8, &[2, 2, 1], &[0, 1, 0, 1])], vec![0, 1]),
            key_of(&["m", "1"], &a, vec![tensor(DataType::Int8, &[2, 2], &[0, 1, 0, 1])], vec![0, 1]),
            key_of(&["m", "1"], &a, vec![tensor(DataType::Bool, &[2, 2], &[0, 1, 0, 1])], vec![0, 1]),
            key_of(&["m", "1"], &a, vec![tensor(DataType::Uint8, &[2, 2], &[0, 1, 0, 0])], vec![0, 1]),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "key {index} is not new");
        }
        assert_eq!(keys[0], key_of(&["m", "1"], &a, vec![base()], vec![0, 1]));
    }

    #[test]
    fn a_photograph_is_never_taken_for_tensors_of_the_same_bytes() {
        let keys = Arc::new(CacheKeyBuilder::new(&["m"], &[port("a")]));
        let bytes = Bytes::from_static(&[1, 2, 3]);
        let photograph = keys.of_content(&CallContent::Photograph(bytes.clone())).now_or_never().unwrap();
        assert_ne!(photograph, key_of(&["m"], &[port("a")], vec![tensor(DataType::Uint8, &[3], &bytes)], vec![]));
        assert_ne!(photograph, photograph.of_priority(Priority::Batch));
        assert_eq!(photograph, photograph.of_priority(Priority::Interactive));
    }

    #[test]
    fn the_same_bytes_as_other_texts_or_as_a_photograph_have_another_key() {
        let keys = Arc::new(CacheKeyBuilder::new(&["m"], &[port("a")]));
        let key = |content: &CallContent| keys.of_content(content).now_or_never().unwrap();
        let texts = |texts: &[&str]| Texts::new(texts.iter()).unwrap();
        let bytes = texts(&["ab"]).tensor().data().clone();
        let contents =
            [texts(&["ab"]), texts(&["a", "b"]), texts(&["b", "a"]), texts(&["ab", ""])].map(CallContent::Texts);
        let mut all: Vec<_> = contents.iter().map(key).collect();
        all.push(key(&CallContent::Photograph(bytes)));
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "key {index} is not new");
        }
        assert_eq!(key(&CallContent::Texts(texts(&["ab"]))), all[0]);
    }

    #[tokio::test]
    async fn bytes_hashed_off_the_async_threads_give_the_same_key() {
        let keys = Arc::new(CacheKeyBuilder::new(&["m"], &[port("a")]));
        let large = Bytes::from(vec![7; OFF_THREAD_HASH_BYTES_MIN]);
        let photograph = CallContent::Photograph(large.clone());
        assert_eq!(keys.of_content(&photograph).await, keys.content(&photograph));
        let fitted = FittedRequest {
            inputs: vec![tensor(DataType::Uint8, &[OFF_THREAD_HASH_BYTES_MIN], &large)],
            outputs: vec![0],
            batch: 1,
        };
        assert_eq!(keys.of_tensors(&fitted).await, keys.tensors(&fitted.inputs, &[0]));
    }

    proptest! {
        #[test]
        fn requests_with_equal_keys_are_equal(
            left in prop::collection::vec(prop::collection::vec(0_u8..2, 0..4), 2),
            right in prop::collection::vec(prop::collection::vec(0_u8..2, 0..4), 2),
            outputs in prop::array::uniform2(prop::collection::vec(0_usize..2, 0..3)),
        ) {
            let ports = [port("a"), port("b")];
            let tensors = |data: &[Vec<u8>]| data.iter().map(|d| tensor(DataType::Uint8, &[d.len()], d)).collect();
            let [first, second] = outputs;
            let same = left == right && first == second;
            let left = key_of(&["m"], &ports, tensors(&left), first);
            prop_assert_eq!(left == key_of(&["m"], &ports, tensors(&right), second), same);
        }
    }
}
