//! The data that the inputs of a run are made of, and its two parts: large bytes, which are shared and never copied,
//! and a small head with everything else.

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use serde::{Deserialize, Serialize};

use super::super::error::PreprocessError;
use super::super::prepared_inputs::PreprocessedInputs;
use crate::pipeline::chain::{ChainStep, Lease, LeaseId};
use crate::pipeline::content::{CallContent, ContentForm};
use crate::pipeline::image::DecodeLimits;
use crate::pipeline::kind::Pipeline;

/// The data that a pipeline makes the inputs of one run of. Clones share the bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum PipelineRunInput {
    /// The content that a caller sent, or a part of it.
    Content { content: CallContent, limits: DecodeLimits },
    /// A step of a chain.
    Step(ChainStep),
}

/// A [`PipelineRunInput`] without its large bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PipelineRunHead {
    Content { form: ContentForm, limits: DecodeLimits },
    Step { lease: LeaseId, task: Bytes, has_bytes: bool, rows: usize },
}

/// A head and bytes that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the parts are no input of a run: {0}")]
pub struct InvalidRunParts(String);

impl PipelineRunInput {
    /// The bytes that it keeps in memory until it runs.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Content { content, .. } => content.bytes(),
            Self::Step(step) => step.bytes.as_ref().map_or(0, Bytes::len),
        }
    }

    pub fn is_photograph(&self) -> bool {
        matches!(self, Self::Content { content: CallContent::Photograph(_), .. })
    }

    /// The rows of its run.
    pub fn rows(&self) -> usize {
        match self {
            Self::Content { content, .. } => content.count(),
            Self::Step(step) => step.rows,
        }
    }

    /// The memory in bytes that a run of `pipeline` in another process takes in addition to this input: for decoded
    /// content, tensors, and copies.
    pub fn memory_elsewhere(&self, pipeline: &dyn Pipeline) -> usize {
        let made = match self {
            Self::Content { content, limits } => pipeline.memory_of(content, *limits),
            Self::Step(step) => pipeline.chain().map_or(0, |chain| chain.memory_of(step)),
        };
        made.saturating_add(self.bytes())
    }

    /// Makes the inputs of the run.
    pub(super) fn prepare(
        &self,
        pipeline: &dyn Pipeline,
        account: &MemoryAccount,
    ) -> Result<PreprocessedInputs, PreprocessError> {
        match self {
            Self::Content { content, limits } => pipeline.prepare(content, *limits, &mut account.hold()),
            Self::Step(step) => {
                let no_chain = || PreprocessError::Content(format!("pipeline.{} has no steps", pipeline.kind().name));
                pipeline.chain().ok_or_else(no_chain)?.prepare(step, account)
            }
        }
    }

    /// Takes the input apart.
    pub fn into_parts(self) -> (PipelineRunHead, Vec<Bytes>) {
        match self {
            Self::Content { content, limits } => {
                let (form, bytes) = (content.form(), content.data().clone());
                (PipelineRunHead::Content { form, limits }, vec![bytes])
            }
            Self::Step(ChainStep { lease, task, bytes, rows }) => {
                let head = PipelineRunHead::Step { lease: lease.id(), task, has_bytes: bytes.is_some(), rows };
                (head, bytes.into_iter().collect())
            }
        }
    }

    /// Puts the parts together again.
    pub fn from_parts(head: PipelineRunHead, bytes: Vec<Bytes>) -> Result<Self, InvalidRunParts> {
        match head {
            PipelineRunHead::Content { form, limits } => {
                let [bytes] = <[Bytes; 1]>::try_from(bytes).map_err(|bytes| wrong_number(&bytes, 1))?;
                let content =
                    CallContent::from_parts(form, bytes).map_err(|error| InvalidRunParts(error.to_string()))?;
                Ok(Self::Content { content, limits })
            }
            PipelineRunHead::Step { lease, task, has_bytes, rows } => {
                if bytes.len() != usize::from(has_bytes) {
                    return Err(wrong_number(&bytes, usize::from(has_bytes)));
                }
                let (lease, bytes) = (Lease::of_other_process(lease), bytes.into_iter().next());
                Ok(Self::Step(ChainStep { lease, task, bytes, rows }))
            }
        }
    }
}

fn wrong_number(bytes: &[Bytes], expected: usize) -> InvalidRunParts {
    InvalidRunParts(format!("expected {expected} buffers, got {}", bytes.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::content::Texts;
    use crate::pipeline::content::rows::RowsText;

    fn contents() -> impl Strategy<Value = CallContent> {
        let file = || proptest::collection::vec(any::<u8>(), 0..60).prop_map(Bytes::from);
        prop_oneof![
            file().prop_map(CallContent::Photograph),
            file().prop_map(CallContent::Document),
            proptest::collection::vec(".{0,9}", 1..5)
                .prop_map(|texts| CallContent::Texts(Texts::new(texts.iter()).unwrap())),
            (file(), 0_usize..9, 0_usize..9)
                .prop_map(|(json, count, first)| CallContent::Rows(RowsText::part(json, count, first))),
        ]
    }

    fn steps() -> impl Strategy<Value = ChainStep> {
        let file = || proptest::collection::vec(any::<u8>(), 0..60);
        (file(), proptest::option::of(file()), any::<usize>()).prop_map(|(task, bytes, rows)| {
            let lease = Lease::of_other_process(LeaseId::default());
            ChainStep { lease, task: task.into(), bytes: bytes.map(Bytes::from), rows }
        })
    }

    fn inputs() -> impl Strategy<Value = PipelineRunInput> {
        let content = (contents(), any::<u64>()).prop_map(|(content, max_pixels)| PipelineRunInput::Content {
            content,
            limits: DecodeLimits { max_pixels },
        });
        prop_oneof![content, steps().prop_map(PipelineRunInput::Step)]
    }

    proptest! {
        #[test]
        fn an_input_is_the_same_after_its_parts_passed_a_boundary(input in inputs()) {
            let (head, bytes) = input.clone().into_parts();
            prop_assert_eq!(bytes.iter().map(Bytes::len).sum::<usize>(), input.bytes());
            let message = postcard::to_stdvec(&head).unwrap();
            let copies: Vec<_> = bytes.iter().map(|bytes| Bytes::copy_from_slice(bytes)).collect();
            let again = PipelineRunInput::from_parts(postcard::from_bytes(&message).unwrap(), copies);
            prop_assert_eq!(again, Ok(input));
        }

        #[test]
        fn parts_of_different_inputs_are_an_error_or_another_input(one in inputs(), other in inputs()) {
            let ((head, _), (_, bytes)) = (one.into_parts(), other.into_parts());
            if let Ok(mixed) = PipelineRunInput::from_parts(head.clone(), bytes.clone()) {
                prop_assert_eq!(mixed.into_parts(), (head, bytes));
            }
        }
    }

    #[test]
    fn the_bytes_of_an_input_are_not_copied() {
        let file = Bytes::from(vec![7; 100]);
        let input = PipelineRunInput::Content {
            content: CallContent::Photograph(file.clone()),
            limits: DecodeLimits::default(),
        };
        let (_, bytes) = input.into_parts();
        assert_eq!(bytes[0].as_ptr(), file.as_ptr());
    }

    #[test]
    fn a_wrong_number_of_buffers_is_refused() {
        let head = PipelineRunHead::Content { form: ContentForm::Photograph, limits: DecodeLimits::default() };
        for count in [0, 2] {
            let error = PipelineRunInput::from_parts(head.clone(), vec![Bytes::new(); count]).unwrap_err();
            assert!(error.to_string().contains(&format!("expected 1 buffers, got {count}")), "{error}");
        }
    }
}
