//! The digest of the input of a run, by which an input is recognized that ended a process.

use blake3::Hasher;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::work::PipelineRunInput;

use super::inputs::JobInputs;
use crate::digest::{add, add_tensor, number};

/// The digest of an input among those of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InputDigest([u8; 32]);

impl InputDigest {
    /// Of the input of a job, and the outputs that it asks for; `None` for one that is different in every call.
    pub fn of(inputs: &JobInputs, outputs: &[usize]) -> Option<Self> {
        match inputs {
            JobInputs::Tensors(tensors) => Some(Self::of_tensors(tensors, outputs)),
            JobInputs::Raw(raw) => Self::of_work(&raw.input, outputs),
        }
    }

    /// Of tensors in the order of the model's inputs.
    pub fn of_tensors(inputs: &[Tensor], outputs: &[usize]) -> Self {
        let mut hasher = hasher("tensors", outputs);
        for tensor in inputs {
            add_tensor(&mut hasher, tensor);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The digest of the content for a pipeline; `None` for a step, since it names its state by a number that no other
    /// call has.
    pub fn of_work(input: &PipelineRunInput, outputs: &[usize]) -> Option<Self> {
        let PipelineRunInput::Content { content, .. } = input else { return None };
        // The rows before a part are no input of it.
        let mut hasher = hasher(content.form().as_str(), outputs);
        number(&mut hasher, content.count());
        add(&mut hasher, content.data());
        Some(Self(*hasher.finalize().as_bytes()))
    }
}

fn hasher(kind: &str, outputs: &[usize]) -> Hasher {
    let mut hasher = Hasher::new_derive_key("ledge blamed inputs, 2026");
    add(&mut hasher, kind.as_bytes());
    number(&mut hasher, outputs.len());
    for &output in outputs {
        number(&mut hasher, output);
    }
    hasher
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ledge_base::tensor::DataType;
    use ledge_engine::pipeline::content::CallContent;
    use ledge_engine::pipeline::image::DecodeLimits;

    use super::*;

    fn tensors(datatype: DataType, shape: &[usize], data: &'static [u8], outputs: &[usize]) -> InputDigest {
        let tensor = Tensor::new(datatype, shape.to_vec(), Bytes::from_static(data)).unwrap();
        InputDigest::of_tensors(&[tensor], outputs)
    }

    #[test]
    fn every_part_of_an_input_changes_its_digest() {
        let content = |content| {
            let input = PipelineRunInput::Content { content, limits: DecodeLimits::default() };
            InputDigest::of_work(&input, &[0]).unwrap()
        };
        let bytes = Bytes::from_static(b"1234");
        let digests = [
            tensors(DataType::Uint8, &[4], b"1234", &[0]),
            tensors(DataType::Uint8, &[4], b"1235", &[0]),
            tensors(DataType::Uint8, &[2, 2], b"1234", &[0]),
            tensors(DataType::Int8, &[4], b"1234", &[0]),
            tensors(DataType::Uint8, &[4], b"1234", &[1]),
            tensors(DataType::Uint8, &[4], b"1234", &[]),
            content(CallContent::Photograph(bytes.clone())),
            content(CallContent::Document(bytes)),
        ];
        for (index, digest) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(digest), "digest {index} is not new");
        }
        assert_eq!(digests[0], tensors(DataType::Uint8, &[4], b"1234", &[0]));
    }
}
