//! A short benchmark of this machine: the runs of shipped models, compared with those on the reference processor.

use std::time::Duration;

use anyhow::bail;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_capacity::sizing::Reference;
use ledge_models::repository::{Repository, tuning};
use serde::Serialize;

use crate::cli::block_on;
use crate::cli::standalone::standalone;
use crate::config::Config;

/// The time of the measurement of each model.
const MEASURED: Duration = Duration::from_secs(1);

/// One model that was measured.
#[derive(Debug, Serialize)]
pub struct MeasuredRun {
    model: String,
    /// The median time of a run here, and that on the reference processor, in seconds.
    run_s: f64,
    reference_s: f64,
}

impl MeasuredRun {
    pub fn line(&self) -> String {
        let (own, reference) = (self.run_s * 1e3, self.reference_s * 1e3);
        format!("Measured here: a run of {} takes {own:.2} ms, and {reference:.2} ms on that processor", self.model)
    }
}

/// Measures each model of the reference that this repository has.
pub fn measure(config: &Config, reference: &Reference) -> anyhow::Result<Vec<MeasuredRun>> {
    let standalone = standalone(config);
    let repository = standalone.repository();
    let runs = block_on(async {
        let mut runs = Vec::new();
        for (model, reference_s) in reference.runs() {
            if let Some(run_s) = median_run(repository, model).await {
                runs.push(MeasuredRun { model: model.to_owned(), run_s, reference_s });
            }
        }
        runs
    })?;
    if runs.is_empty() {
        let models = reference.runs().map(|(model, _)| model).collect::<Vec<_>>().join(", ");
        bail!("nothing can be measured: the model repository has none of {models}");
    }
    Ok(runs)
}

/// `None` for a model that is not there or cannot run here.
async fn median_run(repository: &Repository, name: &str) -> Option<f64> {
    let name: ModelName = name.parse().ok()?;
    repository.load(&name, &Principal::Local).await.ok()?;
    let model = repository.pin(&name, None).ok()?;
    let measured = tuning::closed_loop(&model, 1, MEASURED).await.ok()?;
    Some(measured.percentile(0.5).as_secs_f64())
}

/// The geometric mean of the ratios of times.
pub fn slowness(runs: &[MeasuredRun]) -> f64 {
    let logarithms: Vec<f64> = runs.iter().map(|of| (of.run_s.max(1e-9) / of.reference_s).ln()).collect();
    #[expect(clippy::cast_precision_loss, reason = "models are few")]
    let count = logarithms.len().max(1) as f64;
    (logarithms.iter().sum::<f64>() / count).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowness_is_the_mean_ratio_of_times() {
        let run = |run_s, reference_s| MeasuredRun { model: String::new(), run_s, reference_s };
        assert!((slowness(&[run(0.02, 0.01), run(0.008, 0.001)]) - 4.0).abs() < 1e-9);
        assert!((slowness(&[]) - 1.0).abs() < 1e-9);
    }
}
