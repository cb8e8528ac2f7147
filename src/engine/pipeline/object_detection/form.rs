//! The form of a model's boxes.

use std::fmt::Debug;

use super::super::error::PostprocessError;
use super::candidates::{BoxActivation, CandidateCollector};
use super::values::OutputValues;

/// A form in which detectors give boxes.
pub(super) trait BoxFormat: Debug {
    /// The outputs that it reads, in the order in which [`Self::collect`] gets them. The first one has the labels.
    fn outputs(&self) -> Vec<BoxFormatOutput<'_>>;

    /// The mistakes that types let through, each with its key.
    fn mistakes(&self) -> Vec<(&'static str, String)>;

    /// Checks the section against the height and width of the model's input.
    fn check_size(&self, _: [u32; 2]) -> Result<(), (&'static str, String)> {
        Ok(())
    }

    fn activation(&self) -> BoxActivation;

    /// Adds the candidates of one run for an input of this height and width; returns the number of classes, where the
    /// outputs say it.
    fn collect(
        &self,
        outputs: &[OutputValues<'_>],
        size: [f32; 2],
        found: &mut CandidateCollector<'_>,
    ) -> Result<Option<usize>, PostprocessError>;
}

/// The mistake in the strides of a grid's layers, if there is one.
pub(super) fn strides_mistake(strides: &[u32], is_missing: bool) -> Option<(&'static str, String)> {
    let is_wrong = is_missing || strides.contains(&0);
    is_wrong.then(|| ("strides", format!("is {strides:?}, expected the pixels of each layer")))
}

/// An output that a form reads.
pub(super) struct BoxFormatOutput<'s> {
    /// The key in the form's table.
    pub(super) key: &'static str,
    /// The output's name; `None` is the only output of the model.
    pub(super) name: Option<&'s str>,
}
