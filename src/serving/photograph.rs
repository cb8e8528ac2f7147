//! Decoding photographs, off the async threads and no more at a time than there are cores.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::ServingError;
use super::answer::late;
use super::inputs::Misfit;
use crate::inference::terms::{Priority, Terms};
use crate::pipeline::image::{self, DecodeLimits};
use crate::repository::LoadedModel;
use crate::tensor::{DataType, Tensor};

/// The places where photographs are decoded. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Decoders {
    /// One permit a core: decoding photographs may use all cores, but never more threads than that.
    cores: Arc<Semaphore>,
    /// Background work has to pass here first, so that few of its photographs stand before an urgent one.
    background: Arc<Semaphore>,
    /// One permit for each photograph that is decoded or waits for it.
    photographs: Arc<Semaphore>,
    max_queue_size: usize,
    limits: DecodeLimits,
}

impl Decoders {
    /// Photographs above `max_pixels` are refused; `count` are decoded at a time and `max_queue_size` more may wait.
    pub fn new(count: usize, max_queue_size: usize, max_pixels: u64) -> Self {
        let count = count.max(1);
        Self {
            photographs: Arc::new(Semaphore::new(count.saturating_add(max_queue_size).min(Semaphore::MAX_PERMITS))),
            cores: Arc::new(Semaphore::new(count)),
            background: Arc::new(Semaphore::new((count - 1).max(1))),
            max_queue_size,
            limits: DecodeLimits { max_pixels },
        }
    }

    /// Decodes a photograph and prepares it for `model`, whose input has `datatype`.
    pub async fn decode(
        &self,
        model: &Arc<LoadedModel>,
        datatype: DataType,
        photograph: Bytes,
        started: Instant,
        terms: &Terms,
    ) -> Result<Tensor, ServingError> {
        let limits = self.limits;
        let place = self
            .photographs
            .clone()
            .try_acquire_owned()
            .map_err(|_| ServingError::Overloaded { model: model.name.clone(), depth: self.max_queue_size })?;
        // Queued here, a photograph waits undecoded: that is a few hundred kB, not some MB.
        let turn = async {
            let behind = match terms.priority {
                Priority::Interactive => None,
                Priority::Batch => Some(self.background.clone().acquire_owned().await),
            };
            (behind, self.cores.clone().acquire_owned().await)
        };
        let turn = tokio::time::timeout_at(terms.deadline.into(), turn).await.map_err(|_| late(model, started))?;
        let model = model.clone();
        let decoded =
            tokio::task::spawn_blocking(move || {
                let _held = (turn, place);
                let pipeline = model.config.pipeline.image_classification.as_ref()?;
                let image = image::decode(&photograph, limits).map_err(|error| error.to_string());
                Some(image.and_then(|image| {
                    pipeline.preparation().prepare(&image, datatype).map_err(|error| error.to_string())
                }))
            });
        let reason = match decoded.await {
            Ok(Some(Ok(tensor))) => return Ok(tensor),
            Ok(Some(Err(reason))) => reason,
            Ok(None) => "the model takes no photographs".to_owned(),
            Err(_) => "the photograph cannot be decoded".to_owned(),
        };
        Err(Misfit::Photograph { reason }.into())
    }
}
