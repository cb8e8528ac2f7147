//! Measures accuracy: runs the model on every file of a folder, and compares the answers with its label, or with those
//! of another model, version or runtime.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use ledge_base::tensor::{Tensor, to_f64};
use ledge_models::serving::request::InferResponse;
use ledge_protocol::decode::Target;
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use super::BenchArgs;
use super::agreement::{self, Agreement, Likeness};
use super::in_process::ask;
use super::inputs::{self, Payload};
use super::labels::{Labels, class};
use super::subject::Subject;
use crate::cli::{Exit, Output, infer, progress};
use crate::config::Config;
use crate::daemon::Standalone;
use crate::scratch::ScratchFolder;

/// The shares of right answers of a model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Accuracy {
    files: usize,
    /// The share of them whose best class is the label.
    top1: f64,
    /// The share of them whose label is among the best five.
    top5: f64,
}

/// Runs the comparison. It fails when a file was not answered.
pub fn run(
    runtime: &Runtime,
    config: &Config,
    args: &BenchArgs,
    images: &Path,
    out: &mut Output,
) -> anyhow::Result<Exit> {
    if !args.url.is_empty() || args.http {
        bail!("accuracy is measured only in this process: leave out --url and --http");
    }
    let files = infer::files_in(images)?;
    let labels = Labels::read(args.labels.as_deref())?;
    let scratch = ScratchFolder::new()?;
    let model = MeasuredModel::load(runtime, config, &args.subject, &scratch.path().join("model"))?;
    let against = scratch.path().join("against");
    let other = args.against.as_ref().map(|other| MeasuredModel::load(runtime, config, other, &against));
    let comparison = other.transpose().and_then(|other| {
        let comparison = compare(&model, other.as_ref(), images, &files, &labels);
        if let Some(other) = &other {
            super::unload(runtime, &other.serving);
        }
        comparison
    });
    super::unload(runtime, &model.serving);
    let comparison = comparison?;
    comparison.write(args, out)?;
    Ok(if comparison.failed.is_empty() { Exit::Success } else { Exit::Failure })
}

/// A serving core with one model.
struct MeasuredModel<'a> {
    runtime: &'a Runtime,
    serving: Standalone,
    target: Target,
}

impl<'a> MeasuredModel<'a> {
    fn load(runtime: &'a Runtime, config: &Config, subject: &Subject, folder: &Path) -> anyhow::Result<Self> {
        subject.isolate(&config.repository, folder)?;
        let serving = super::load(runtime, config, folder.to_owned(), subject)?;
        Ok(Self { runtime, serving, target: Target { model: subject.model.clone(), version: subject.version } })
    }

    fn ask(&self, payload: Payload) -> anyhow::Result<InferResponse> {
        Ok(self.runtime.block_on(ask(&self.serving, &self.target, payload))?)
    }

    /// The class that a label names, for the output that `answer` begins with.
    fn class(&self, label: &str, answer: &InferResponse) -> anyhow::Result<usize> {
        let pinned = self.serving.repository().pin(&self.target.model, self.target.version)?;
        let output = answer.outputs.first().and_then(|(name, _)| pinned.labels.get(name));
        let unknown = || format!("the model has no class {label:?}: expected one of its labels, or a class number");
        class(label, output.map_or(&[], AsRef::as_ref)).with_context(unknown)
    }
}

/// The results of all files.
#[derive(Debug, Default)]
struct Comparison {
    /// The ranks of the right classes.
    ranks: Vec<usize>,
    /// The same for the other model.
    other_ranks: Vec<usize>,
    likenesses: Vec<(String, Likeness)>,
    /// Files without an answer, each with the reason.
    failed: Vec<(String, String)>,
}

fn compare(
    model: &MeasuredModel<'_>,
    other: Option<&MeasuredModel<'_>>,
    images: &Path,
    files: &[std::path::PathBuf],
    labels: &Labels,
) -> anyhow::Result<Comparison> {
    let labelled: Vec<_> = files.iter().map(|file| labels.of(images, file)).collect();
    if other.is_none() && labelled.iter().all(Option::is_none) {
        bail!(
            "the files of {} have no labels: give --labels, or put the files of each class in a subfolder",
            images.display()
        );
    }
    let bar = progress::bar(Some(files.len() as u64), "{bar:30} {pos}/{len} {elapsed}");

    let mut comparison = Comparison::default();
    for (file, label) in files.iter().zip(&labelled) {
        if let Err(error) = comparison.add(model, other, file, label.as_deref()) {
            comparison.failed.push((file.display().to_string(), format!("{error:#}")));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(comparison)
}

impl Comparison {
    fn add(
        &mut self,
        model: &MeasuredModel<'_>,
        other: Option<&MeasuredModel<'_>>,
        file: &Path,
        label: Option<&str>,
    ) -> anyhow::Result<()> {
        let payload = inputs::file(&model.target.model, file)?;
        let answer = model.ask(payload.clone())?;
        let rank = |model: &MeasuredModel<'_>, answer: &InferResponse| {
            let (_, scores) = answer.outputs.first().context("the answer has no output")?;
            label.map(|label| rank(scores, model.class(label, answer)?)).transpose()
        };
        let own = rank(model, &answer)?;
        if let Some(other) = other {
            let counterpart = other.ask(payload)?;
            let likeness = agreement::likeness(&answer.outputs, &counterpart.outputs)?;
            self.other_ranks.extend(rank(other, &counterpart)?);
            self.likenesses.push((file.display().to_string(), likeness));
        }
        self.ranks.extend(own);
        Ok(())
    }

    fn write(&self, args: &BenchArgs, out: &mut Output) -> anyhow::Result<()> {
        let models =
            [(Some(&args.subject), accuracy(&self.ranks)), (args.against.as_ref(), accuracy(&self.other_ranks))];
        let models = models.into_iter().filter_map(|(subject, accuracy)| Some((subject?, accuracy)));
        let agreement: Option<Agreement> = agreement::agreement(&self.likenesses);
        if args.json {
            let models: Vec<_> =
                models.map(|(subject, accuracy)| json!({"model": subject.to_string(), "accuracy": accuracy})).collect();
            let failed: Vec<_> =
                self.failed.iter().map(|(file, error)| json!({"file": file, "error": error})).collect();
            writeln!(out, "{:#}", json!({"models": models, "agreement": agreement, "failed": failed}))?;
            return Ok(());
        }
        for (subject, accuracy) in models {
            if let Some(Accuracy { files, top1, top5 }) = accuracy {
                let (top1, top5) = (100.0 * top1, 100.0 * top5);
                writeln!(out, "{subject:<32} top-1 {top1:6.2} %   top-5 {top5:6.2} %   of {files} files")?;
            }
        }
        if let Some(agreement) = agreement {
            writeln!(
                out,
                "{:<32} top-1 {:6.2} %   cosine {:.6} (least {:.6})   of {} files",
                "agreement",
                100.0 * agreement.same_top1,
                agreement.mean_cosine,
                agreement.least_cosine,
                agreement.compared
            )?;
            let (difference, file) = (agreement.largest_difference, agreement.largest_difference_at);
            writeln!(out, "{:<32} {difference:.6} in {file}", "largest difference")?;
        }
        for (file, error) in &self.failed {
            writeln!(out, "not answered: {file}: {error}")?;
        }
        Ok(())
    }
}

/// The number of classes with a higher score than `class`, or with the same score and a lower number.
fn rank(scores: &Tensor, class: usize) -> anyhow::Result<usize> {
    if scores.shape().iter().filter(|&&side| side != 1).count() > 1 {
        bail!("accuracy needs one row of scores, but the first output has the shape {:?}", scores.shape());
    }
    let scores = to_f64(scores).context("the first output of the model contains no numbers")?;
    let own = scores.get(class).with_context(|| format!("the model has {} classes, not {class}", scores.len()))?;
    let before = |(index, score): (usize, &f64)| score > own || (score.total_cmp(own).is_eq() && index < class);
    Ok(scores.iter().enumerate().filter(|&one| before(one)).count())
}

/// The shares of right answers; `None` without ranks.
fn accuracy(ranks: &[usize]) -> Option<Accuracy> {
    #[expect(clippy::cast_precision_loss, reason = "files are few")]
    let within = |limit: usize| ranks.iter().filter(|rank| **rank < limit).count() as f64 / ranks.len() as f64;
    (!ranks.is_empty()).then(|| Accuracy { files: ranks.len(), top1: within(1), top5: within(5) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_counts_the_better_classes_and_of_equal_ones_the_first_wins() {
        let scores = Tensor::from_vec(vec![1, 4], vec![0.1_f32, 0.5, 0.9, 0.5]).unwrap();
        let ranks: Vec<_> = (0..4).map(|class| rank(&scores, class).unwrap()).collect();
        assert_eq!(ranks, [3, 1, 0, 2]);
        assert!(rank(&scores, 4).unwrap_err().to_string().contains("4 classes"));
        assert!(rank(&Tensor::from_vec(vec![2, 2], vec![0_f32; 4]).unwrap(), 0).is_err());
    }

    #[test]
    fn accuracy_is_a_share_of_the_labelled_files() {
        let accuracy = accuracy(&[0, 4, 5, 0]).unwrap();
        assert_eq!(accuracy, Accuracy { files: 4, top1: 0.5, top5: 0.75 });
        assert_eq!(super::accuracy(&[]), None);
    }
}
