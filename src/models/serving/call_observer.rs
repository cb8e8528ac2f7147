//! A look at answered calls, for the part that watches what models get and give.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::picture_reading::PictureReading;

use crate::repository::LoadedModel;

/// Looks at some of the answered calls. It never waits.
pub trait CallObserver: Debug + Send + Sync {
    /// True for a call that it looks at: a sample of the calls of each version.
    fn wants(&self, model: &LoadedModel) -> bool;

    /// Looks at an answered call. `model` is the version that answered.
    fn on_answer(&self, model: &LoadedModel, inputs: &ObservedInputs, outputs: &[(String, Tensor)]);
}

/// The inputs of a call, with their bytes shared.
#[derive(Debug)]
pub enum ObservedInputs {
    /// By the names of the model's inputs.
    Tensors(Vec<(String, Tensor)>),
    Content(CallContent, Option<PictureReading>),
}

/// The part that looks, once it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct CallObserverSlot(Arc<OnceLock<Arc<dyn CallObserver>>>);

impl CallObserverSlot {
    pub(super) fn set(&self, observer: Arc<dyn CallObserver>) {
        // Set once, at the start.
        let _ = self.0.set(observer);
    }

    /// The inputs of a call to look at, made only where the call is in the sample.
    pub(super) fn sample(
        &self,
        model: &LoadedModel,
        inputs: impl FnOnce() -> ObservedInputs,
    ) -> Option<ObservedInputs> {
        self.0.get().filter(|observer| observer.wants(model)).map(|_| inputs())
    }

    /// Shows an answered call of the sample.
    pub(super) fn show(&self, model: &LoadedModel, sampled: Option<ObservedInputs>, outputs: &[(String, Tensor)]) {
        if let (Some(observer), Some(inputs)) = (self.0.get(), sampled) {
            observer.on_answer(model, &inputs, outputs);
        }
    }
}
