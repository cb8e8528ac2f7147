//! The kind `table`: rows with named columns in, classes with probabilities or numbers out.
//!
//! Files, in reading order:
//! * `table.rs` - the section, and the pipeline of one model
//! * `table/cell.rs` - rows from any source: JSON, CSV or the feature store
//! * `table/column.rs` - a column: from cells to the elements of an input
//! * `table/proposal.rs` - the section that a model without one may get

pub mod cell;
mod column;
pub mod proposal;

use std::sync::Arc;

use ledge_base::memory_budget::MemoryReservation;
use ledge_base::tensor::{DataType, Tensor, to_f64};
use ledge_base::toml_check::ValueProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use self::cell::{ExtraColumnsPolicy, TableCell, TableColumnNames, TableRows};
use self::column::TableColumn;
pub use self::column::{ColumnType, FeatureColumn};
use super::content::rows::RowsText;
use super::content::{CallContent, ContentDivision, PipelineInput};
use super::error::{PostprocessError, PreprocessError};
use super::image::DecodeLimits;
use super::kind::{GoldenExpectation, ModelFacts, Pipeline, PipelineKind, PipelineSection, PrintedRow};
use super::prepared_inputs::PreprocessedInputs;
pub use cell::CELLS_MAX;

pub const KIND: PipelineKind = PipelineKind {
    name: "table",
    input: PipelineInput::Rows,
    models: &[],
    member: "rows",
    schema: |generator| generator.subschema_for::<Vec<TableRowAnswer>>(),
    text: None,
    is_ranked: false,
    rows,
};

/// The most columns of a table.
const COLUMNS_MAX: usize = 4096;

/// The most rows of one run, and the most cells unless one row has more: some milliseconds of a core.
const RUN_ROWS_MAX: usize = 512;
const RUN_CELLS_MAX: usize = 1 << 15;

/// The table `[pipeline.table]` of a model's config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableConfig {
    /// The columns, in the order of the model's one input; in any order for a model with one input a column.
    columns: Vec<TableColumn>,
    /// The treatment of columns of a row that are not named here.
    #[serde(default)]
    extra_columns: ExtraColumnsPolicy,
    /// The output with the class of each row, or with its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// The output with the probabilities of the classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    probabilities: Option<String>,
    /// The names of the classes, where the model's file has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    classes: Vec<String>,
}

/// The answer to one row.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TableRowAnswer {
    /// The class, of a classifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// The probability of each class by its name, in the model's order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<std::collections::BTreeMap<String, f64>>")]
    probabilities: Option<Probabilities>,
    /// The numbers of a regressor, one for each of its targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<f64>>,
}

/// The probability of each class, in the order of the model.
#[derive(Debug, Clone, PartialEq)]
struct Probabilities(Vec<(String, f64)>);

impl Serialize for Probabilities {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, number)| (name, number)))
    }
}

impl PipelineSection for TableConfig {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn column_type(&self, name: &str) -> Option<ColumnType> {
        self.columns.iter().find(|column| column.name == name).map(|column| column.kind)
    }

    fn columns(&self) -> Vec<&str> {
        self.columns.iter().map(|column| column.name.as_str()).collect()
    }

    fn required_columns(&self) -> Vec<&str> {
        self.columns.iter().filter(|column| column.is_required()).map(|column| column.name.as_str()).collect()
    }

    fn mistakes(&self) -> Vec<ValueProblem> {
        let mut mistakes = Vec::new();
        if !(1..=COLUMNS_MAX).contains(&self.columns.len()) {
            let message = format!("has {} columns, expected 1 to {COLUMNS_MAX}", self.columns.len());
            mistakes.push(ValueProblem::new("columns", message));
        }
        let mut names = std::collections::HashSet::new();
        for (index, column) in self.columns.iter().enumerate() {
            let place = format!("columns[{index}]");
            mistakes.extend(column.mistake().map(|message| ValueProblem::new(place.clone(), message)));
            if !names.insert(&column.name) {
                mistakes.push(ValueProblem::new(place, format!("the name {:?} is another column's", column.name)));
            }
        }
        let mut classes = std::collections::HashSet::new();
        if let Some(twice) = self.classes.iter().find(|class| !classes.insert(*class)) {
            mistakes.push(ValueProblem::new("classes", format!("{twice:?} is there twice")));
        }
        mistakes
    }

    fn bind(&self, model: ModelFacts<'_>) -> Result<Arc<dyn Pipeline>, String> {
        let inputs = bind_inputs(&self.columns, model)?;
        let (outputs, result) = self.bind_outputs(model)?;
        Ok(Arc::new(TablePredictor {
            names: Arc::new(TableColumnNames::new(
                self.columns.iter().map(|column| column.name.clone()),
                self.extra_columns,
            )),
            features: self.columns.iter().filter_map(TableColumn::made_of_feature).collect(),
            columns: self.columns.clone(),
            inputs,
            outputs,
            result,
        }))
    }
}

/// One input of the model, with the positions of its columns.
#[derive(Debug)]
struct BoundInput {
    datatype: DataType,
    columns: Vec<usize>,
    /// False for an input of shape `[rows]`.
    has_width: bool,
}

/// The meaning of the outputs of a run, in their order.
#[derive(Debug, Clone, PartialEq)]
enum TableOutputs {
    /// The class of each row, and if `Some`, the names of the columns of probabilities behind it.
    Class {
        probabilities: Option<Arc<[String]>>,
        names: Arc<[String]>,
    },
    /// Only probabilities: the class with the highest one is the answer.
    Probabilities(Arc<[String]>),
    Numbers,
}

/// The columns of each input: all of them in one matrix, or those with the names of the inputs.
fn bind_inputs(columns: &[TableColumn], model: ModelFacts<'_>) -> Result<Vec<BoundInput>, String> {
    let ports = &model.signature.inputs;
    let bound = |port: &crate::backend::ModelPort, taken: Vec<usize>| {
        let has_width = match port.shape.as_slice() {
            [-1] if taken.len() == 1 => false,
            [-1, width] if *width == -1 || usize::try_from(*width) == Ok(taken.len()) => true,
            shape => {
                let count = taken.len();
                return Err(format!(
                    "input {:?} takes {shape:?}, and pipeline.table has {count} columns for it",
                    port.name
                ));
            }
        };
        for column in taken.iter().filter_map(|&position| columns.get(position)) {
            let fits = column.fits(port.datatype);
            fits.map_err(|reason| {
                format!("column {:?}, input {:?} ({}): {reason}", column.name, port.name, port.datatype)
            })?;
        }
        Ok(BoundInput { datatype: port.datatype, columns: taken, has_width })
    };
    if let [only] = ports.as_slice() {
        return Ok(vec![bound(only, (0..columns.len()).collect())?]);
    }
    let stranger = columns.iter().find(|column| !ports.iter().any(|port| port.name == column.name));
    if let Some(column) = stranger {
        return Err(format!("column {:?} has the name of no input, and the model has one input a column", column.name));
    }
    let named = ports.iter().map(|port| {
        let position = columns.iter().position(|column| column.name == port.name);
        bound(port, vec![position.ok_or_else(|| format!("no column has the name of input {:?}", port.name))?])
    });
    named.collect()
}

impl TableConfig {
    fn bind_outputs(&self, model: ModelFacts<'_>) -> Result<(Vec<usize>, TableOutputs), String> {
        let outputs = &model.signature.outputs;
        let find = |key: &str, name: &Option<String>| {
            let Some(name) = name else { return Ok(None) };
            let position = outputs.iter().position(|port| port.name == *name);
            position.map(Some).ok_or_else(|| format!("pipeline.table.{key} names {name:?}, which the model lacks"))
        };
        let (mut output, mut probabilities) =
            (find("output", &self.output)?, find("probabilities", &self.probabilities)?);
        if output.is_none() && probabilities.is_none() {
            match outputs.as_slice() {
                [_] => output = Some(0),
                [label, scores] if is_label(label) && scores.shape.len() == 2 => {
                    (output, probabilities) = (Some(0), Some(1));
                }
                _ => {
                    let count = outputs.len();
                    return Err(format!("the model has {count} outputs: pipeline.table.output must name one"));
                }
            }
        }
        let names = |position: usize| -> Arc<[String]> {
            if !self.classes.is_empty() {
                return self.classes.clone().into();
            }
            outputs.get(position).and_then(|port| model.labels.get(&port.name)).cloned().unwrap_or_default()
        };
        let port = |position: usize| outputs.get(position);
        let is_class = |position| port(position).is_some_and(is_label);
        Ok(match (output, probabilities) {
            (Some(output), None) if is_class(output) => {
                (vec![output], TableOutputs::Class { probabilities: None, names: self.classes.clone().into() })
            }
            (Some(output), None) => (vec![output], TableOutputs::Numbers),
            (None, Some(scores)) => (vec![scores], TableOutputs::Probabilities(names(scores))),
            (Some(output), Some(scores)) => {
                let probabilities = Some(names(scores));
                (vec![output, scores], TableOutputs::Class { probabilities, names: self.classes.clone().into() })
            }
            (None, None) => return Err("the model has no output".to_owned()),
        })
    }
}

/// Returns true if an output can be the class of each row.
pub fn is_label(port: &crate::backend::ModelPort) -> bool {
    matches!(port.datatype, DataType::Bytes | DataType::Int64 | DataType::Int32)
        && matches!(port.shape.as_slice(), [_] | [_, 1])
}

/// The pipeline of one model.
#[derive(Debug)]
struct TablePredictor {
    columns: Vec<TableColumn>,
    names: Arc<TableColumnNames>,
    features: Vec<FeatureColumn>,
    /// In the signature's order.
    inputs: Vec<BoundInput>,
    outputs: Vec<usize>,
    result: TableOutputs,
}

impl Pipeline for TablePredictor {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn sample(&self) -> CallContent {
        let cells = self.columns.iter().map(|column| (column.name.clone(), column.sample()));
        CallContent::Rows(RowsText::part(Value::Object(cells.collect()).to_string().into(), 1, 0))
    }

    fn feature_columns(&self) -> &[FeatureColumn] {
        &self.features
    }

    fn has_column(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn divide(&self, content: &CallContent) -> Option<ContentDivision> {
        let CallContent::Rows(rows) = content else { return None };
        let most = (RUN_CELLS_MAX / self.columns.len().max(1)).clamp(1, RUN_ROWS_MAX);
        let parts = rows.divided(most)?.into_iter().map(CallContent::Rows).collect();
        Some(ContentDivision { parts, places: (0..rows.count()).collect() })
    }

    fn prepare(
        &self,
        content: &CallContent,
        _limits: DecodeLimits,
        hold: &mut MemoryReservation,
    ) -> Result<PreprocessedInputs, PreprocessError> {
        let CallContent::Rows(content) = content else { return Err(PreprocessError::Content("expected rows".into())) };
        let cells = content.count().saturating_mul(self.columns.len()).min(CELLS_MAX);
        hold.grow(cells.saturating_mul(size_of::<TableCell>()).saturating_add(content.json().len()))?;
        let rows = TableRows::read(self.names.clone(), content).map_err(PreprocessError::Content)?;
        let inputs = self.tensors(&rows).map_err(PreprocessError::Content)?;
        Ok(PreprocessedInputs { inputs, postprocess: None, picture: None })
    }

    fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    fn scores(&self) -> Option<usize> {
        match self.result {
            TableOutputs::Class { probabilities: Some(_), .. } => self.outputs.get(1).copied(),
            TableOutputs::Probabilities(_) => self.outputs.first().copied(),
            _ => None,
        }
    }

    fn answer(&self, results: &[&Tensor]) -> Result<Box<RawValue>, PostprocessError> {
        to_raw_value(&self.answers(results)?).map_err(|error| PostprocessError::Outputs(error.to_string()))
    }

    fn judge(&self, results: &[&Tensor], expected: GoldenExpectation<'_>) -> Result<(), String> {
        if expected.detections.is_some() {
            return Err("pipeline.table detects no objects: leave `detections` out".to_owned());
        }
        let answers = self.answers(results).map_err(|error| error.to_string())?;
        let first = answers.first().ok_or("the answer has no row")?;
        if let Some(expected) = expected.label
            && first.class.as_deref() != Some(expected)
        {
            return Err(format!("expected {expected:?}, got {:?}", first.class.as_deref().unwrap_or("no class")));
        }
        let Some(least) = expected.min_score else { return Ok(()) };
        let score = first.class.as_ref().and_then(|class| first.probabilities.as_ref()?.of(class));
        match score {
            Some(score) if score >= f64::from(least) => Ok(()),
            Some(score) => Err(format!("scores {score:.3}, expected at least {least}")),
            None => Err("the answer has no probability of its class".to_owned()),
        }
    }
}

impl TablePredictor {
    /// The model's inputs, each with a line for every row.
    fn tensors(&self, rows: &TableRows) -> Result<Vec<Tensor>, String> {
        let tensor = |input: &BoundInput| {
            let columns = input.columns.iter().filter_map(|&place| Some((place, self.columns.get(place)?)));
            let columns: Vec<_> = columns.collect();
            let shape = if input.has_width { vec![rows.len(), columns.len()] } else { vec![rows.len()] };
            column::tensor(input.datatype, shape, rows, &columns)
        };
        self.inputs.iter().map(tensor).collect()
    }

    fn answers(&self, results: &[&Tensor]) -> Result<Vec<TableRowAnswer>, PostprocessError> {
        let lacks = || PostprocessError::Outputs("the run gave fewer outputs than the answer needs".to_owned());
        let first = results.first().ok_or_else(lacks)?;
        match &self.result {
            TableOutputs::Numbers => Ok(numbers(first)?
                .into_iter()
                .map(|row| TableRowAnswer { class: None, probabilities: None, values: Some(row) })
                .collect()),
            TableOutputs::Probabilities(names) => probabilities(first, names)?
                .into_iter()
                .map(|row| Ok(TableRowAnswer { class: row.best(), probabilities: Some(row), values: None }))
                .collect(),
            TableOutputs::Class { probabilities: None, names } => {
                let answer = |class| TableRowAnswer { class: Some(class), probabilities: None, values: None };
                Ok(classes(first, names)?.into_iter().map(answer).collect())
            }
            TableOutputs::Class { probabilities: Some(columns), names } => {
                let classes = classes(first, names)?;
                let rows = probabilities(results.get(1).ok_or_else(lacks)?, columns)?;
                if classes.len() != rows.len() {
                    let message = format!("{} classes and {} rows of probabilities", classes.len(), rows.len());
                    return Err(PostprocessError::Outputs(message));
                }
                let answer =
                    |(class, row)| TableRowAnswer { class: Some(class), probabilities: Some(row), values: None };
                Ok(classes.into_iter().zip(rows).map(answer).collect())
            }
        }
    }
}

/// The numbers of each row.
fn numbers(output: &Tensor) -> Result<Vec<Vec<f64>>, PostprocessError> {
    let numbers = to_f64(output).ok_or_else(|| PostprocessError::Outputs("expected numbers, got BYTES".to_owned()))?;
    if let Some(index) = numbers.iter().position(|number| !number.is_finite()) {
        return Err(PostprocessError::Values(format!("number {index} is not finite")));
    }
    let rows = output.shape().first().copied().unwrap_or(1);
    let width = numbers.len().checked_div(rows).unwrap_or(0).max(1);
    // Written as the shortest decimal that the model's own type reads back, not as the nearest double.
    let shortest = |number: f64| match output.datatype() {
        DataType::Fp32 => {
            #[expect(clippy::cast_possible_truncation, reason = "it was an f32")]
            let number = number as f32;
            number.to_string().parse().unwrap_or(f64::from(number))
        }
        _ => number,
    };
    Ok(numbers.chunks(width).map(|row| row.iter().copied().map(shortest).collect()).collect())
}

/// The probabilities of each row by the names of their columns, which are numbers where the model gives no names.
fn probabilities(output: &Tensor, names: &[String]) -> Result<Vec<Probabilities>, PostprocessError> {
    let name = |index: usize| names.get(index).cloned().unwrap_or_else(|| index.to_string());
    let rows = numbers(output)?;
    if let Some(row) = rows.first()
        && !names.is_empty()
        && names.len() != row.len()
    {
        return Err(PostprocessError::Outputs(format!("{} probabilities for {} classes", row.len(), names.len())));
    }
    let row = |row: Vec<f64>| row.into_iter().enumerate().map(|(index, number)| (name(index), number)).collect();
    Ok(rows.into_iter().map(row).map(Probabilities).collect())
}

impl Probabilities {
    fn of(&self, class: &str) -> Option<f64> {
        self.0.iter().find(|(name, _)| name == class).map(|(_, number)| *number)
    }

    /// The class with the highest probability, of equal ones the first.
    fn best(&self) -> Option<String> {
        let better = |best: &(String, f64), next: &(String, f64)| best.1 < next.1;
        let best = self.0.iter().reduce(|best, next| if better(best, next) { next } else { best });
        best.map(|(name, _)| name.clone())
    }
}

/// The class of each row: a string, or a number that may stand for a name.
fn classes(output: &Tensor, names: &[String]) -> Result<Vec<String>, PostprocessError> {
    if let Some(strings) = output.strings() {
        return Ok(strings.map(|name| String::from_utf8_lossy(name).into_owned()).collect());
    }
    let integers = output.elements::<i64>().map(std::borrow::Cow::into_owned);
    let small = || output.elements::<i32>().map(|numbers| numbers.iter().map(|&number| i64::from(number)).collect());
    let integers: Vec<i64> = integers
        .or_else(small)
        .ok_or_else(|| PostprocessError::Outputs(format!("expected classes, got {}", output.datatype())))?;
    let name = |class: &i64| usize::try_from(*class).ok().and_then(|index| names.get(index)).cloned();
    Ok(integers.iter().map(|class| name(class).unwrap_or_else(|| class.to_string())).collect())
}

fn rows(answers: &Value) -> Vec<PrintedRow> {
    let row = |answer: &Value| {
        let class = answer.get("class").and_then(Value::as_str);
        let score = class.and_then(|class| answer.get("probabilities")?.get(class)?.as_f64());
        let values = || answer.get("values").map(ToString::to_string).unwrap_or_default();
        PrintedRow { score, text: class.map_or_else(values, str::to_owned) }
    };
    answers.as_array().into_iter().flatten().map(row).collect()
}

#[cfg(test)]
mod tests;
