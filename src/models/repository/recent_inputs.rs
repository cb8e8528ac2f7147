//! The last inputs of callers.

use std::collections::VecDeque;

use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::content::CallContent;

/// Inputs of callers that are remembered, and the most bytes of each.
pub(super) const RECENT_MAX: usize = 4;

pub(super) const RECENT_BYTES_MAX: usize = 1 << 20;

/// An input that both versions take.
#[derive(Debug, Clone)]
pub enum SampleInput {
    Tensors(Vec<Tensor>),
    Content(CallContent),
}

/// The last inputs of callers.
#[derive(Debug, Default)]
pub struct RecentInputs(VecDeque<Vec<Tensor>>);

impl RecentInputs {
    /// Remembers an input, unless it is large, in place of the oldest.
    pub fn keep(&mut self, inputs: &[Tensor]) {
        if inputs.iter().map(|tensor| tensor.data().len()).sum::<usize>() > RECENT_BYTES_MAX {
            return;
        }
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(inputs.to_vec());
    }

    /// The inputs, the oldest first.
    pub fn all(&self) -> Vec<SampleInput> {
        self.0.iter().cloned().map(SampleInput::Tensors).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_inputs_that_are_not_large_are_remembered() {
        let mut recent = RecentInputs::default();
        let tensor = |length: usize| Tensor::from_vec(vec![length], vec![0_u8; length]).unwrap();
        recent.keep(&[tensor(RECENT_BYTES_MAX), tensor(1)]);
        assert!(recent.all().is_empty());
        for length in 1..=RECENT_MAX + 2 {
            recent.keep(&[tensor(length)]);
        }
        let lengths: Vec<_> = recent.0.iter().map(|inputs| inputs[0].data().len()).collect();
        assert_eq!(lengths, [3, 4, 5, 6]);
    }
}
