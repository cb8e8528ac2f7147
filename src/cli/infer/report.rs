//! The answers of a run: a table or JSON on standard output, or the lines of a results file.

use std::io::Write;
use std::path::Path;

use ledge_engine::pipeline::KINDS;
use ledge_engine::pipeline::kind::{PipelineKind, PrintedRow};
use serde::Serialize;
use serde_json::{Map, Value};

use super::batch::AnsweredFile;
use super::calls::FileAnswer;
use super::results_file::{ResultLine, ResultsFile, ResultsOrigin};
use crate::cli::Output;

/// The place that answers are written to.
pub enum AnswerSink {
    Table {
        /// The width of the column of files, in characters.
        width: usize,
        /// Set once the headings are written.
        headed: bool,
    },
    Json,
    File {
        results: ResultsFile,
        origin: ResultsOrigin,
    },
}

pub struct InferReport<'a> {
    pub out: &'a mut Output,
    pub sink: AnswerSink,
    /// The number of labels to show.
    pub top: usize,
}

impl InferReport<'_> {
    pub fn write(&mut self, answered: AnsweredFile<'_>) -> anyhow::Result<()> {
        let AnsweredFile { path, state, answer } = answered;
        let file = path.to_string_lossy();
        match &mut self.sink {
            AnswerSink::Table { width, headed } => {
                let width = *width;
                // The column without a fixed width is the last one.
                if !std::mem::replace(headed, true) {
                    writeln!(self.out, "{FILE_HEADING:<width$} {:>8} {:>11}  ANSWER", "SCORE", "TIME")?;
                }
                for (score, text, time) in rows(answer, self.top) {
                    writeln!(self.out, "{file:<width$} {score:>8} {time:>11}  {text}")?;
                }
            }
            AnswerSink::Json => {
                let answer = shortened(answer, self.top);
                let line = ResultLine { file: &file, state: None, answer: &answer };
                writeln!(self.out, "{}", serde_json::to_string(&line)?)?;
            }
            AnswerSink::File { results, origin } => {
                let mut answer = shortened(answer, self.top);
                origin.add_to(&mut answer);
                results.write(&ResultLine { file: &file, state: state.as_ref(), answer: &answer })?;
            }
        }
        Ok(())
    }
}

impl InferReport<'_> {
    /// Writes the answer to a row of a file, or without a number the error of the whole file.
    pub fn write_row(&mut self, path: &Path, row: Option<usize>, answer: FileAnswer) -> anyhow::Result<()> {
        let file = path.to_string_lossy();
        if let AnswerSink::Json = self.sink {
            let line = RowLine { file: &file, row, answer: &shortened(answer, self.top) };
            writeln!(self.out, "{}", serde_json::to_string(&line)?)?;
            return Ok(());
        }
        let named = row.map_or_else(|| file.to_string(), |row| format!("{file}:{row}"));
        self.write(AnsweredFile { path: Path::new(&named), state: None, answer })
    }
}

/// A line of answers to rows.
#[derive(Serialize)]
struct RowLine<'a> {
    file: &'a str,
    /// From 0, the first row behind the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<usize>,
    #[serde(flatten)]
    answer: &'a Map<String, Value>,
}

/// The heading of the column of files.
pub const FILE_HEADING: &str = "FILE";

/// The members of a line of JSON.
fn shortened(answer: FileAnswer, top: usize) -> Map<String, Value> {
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(reason) => return Map::from_iter([("error".to_owned(), reason.into())]),
    };
    if let Some((kind, result)) = result_of(&mut answer) {
        shorten(kind, result, top);
    }
    answer
}

/// Cuts a ranking to its first `top` labels. Other results, such as detections, stay whole.
fn shorten(kind: &PipelineKind, result: &mut Value, top: usize) {
    if let Some(ranking) = result.as_array_mut().filter(|_| kind.is_ranked) {
        ranking.truncate(top);
    }
}

/// The result of a pipeline in an answer, with the pipeline's kind; none in an answer to tensors.
fn result_of(answer: &mut Map<String, Value>) -> Option<(&'static PipelineKind, &mut Value)> {
    let kind = KINDS.iter().find(|kind| answer.contains_key(kind.member))?;
    Some((kind, answer.get_mut(kind.member)?))
}

/// An answer as rows of score, text and time.
fn rows(answer: FileAnswer, top: usize) -> Vec<(String, String, String)> {
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(reason) => return vec![(String::new(), format!("error: {reason}"), String::new())],
    };
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_f64);
    let time = answer
        .get("time_ms")
        .map(|time| ["decode", "queue", "compute"].iter().filter_map(|part| number(time, part)).sum::<f64>())
        .map(|time| format!("{time:.1} ms"));
    if let Some((kind, result)) = result_of(&mut answer) {
        shorten(kind, result, top);
        let rows = (kind.rows)(result).into_iter().enumerate().map(|(rank, PrintedRow { score, text })| {
            let time = time.clone().filter(|_| rank == 0).unwrap_or_default();
            (score.map(|score| format!("{score:.4}")).unwrap_or_default(), text, time)
        });
        return rows.collect();
    }
    let outputs = answer.get("outputs").and_then(Value::as_array).cloned().unwrap_or_default();
    let row = |output: &Value| {
        let text = |key: &str| output.get(key).map(ToString::to_string).unwrap_or_default();
        let name = output.get("name").and_then(Value::as_str).unwrap_or_default();
        (String::new(), format!("{name} {} {}", text("shape"), text("data")), String::new())
    };
    outputs.iter().map(row).collect()
}
