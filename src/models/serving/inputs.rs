//! Comparison of a request with the model's signature. The messages are Triton's, so that a search for them finds help.

use ledge_base::memory_budget::UNCOUNTED_BYTES_MAX;
use ledge_base::tensor::{DataType, Tensor, element_count, push_string};
use ledge_engine::backend::ModelPort;
use ledge_engine::pipeline::content::{CallContent, PipelineInput, TextError, Texts};

use super::request::{CallInputs, InferResponse, OutputRequest};
use crate::repository::LoadedModel;

/// Reason why a request does not fit the model: the caller's mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error(
        "expected {expected} inputs but got {} inputs for model '{model}'. Got input(s) [{}], but missing required \
         input(s) [{}]. Please provide all required input(s).", got.len(), quoted(got), quoted(missing)
    )]
    MissingInputs {
        model: String,
        expected: usize,
        got: Vec<String>,
        /// Names that did not come.
        missing: Vec<String>,
    },
    #[error("unexpected inference input '{input}' for model '{model}'")]
    UnexpectedInput { model: String, input: String },
    #[error("input '{input}' already exists in request")]
    DuplicateInput { input: String },
    #[error("inference input '{input}' data-type is '{got}', but model '{model}' expects '{expected}'")]
    DataType { model: String, input: String, expected: DataType, got: DataType },
    #[error("unexpected shape for input '{input}' for model '{model}'. Expected {}, got {}", dims(expected), dims(got))]
    Shape {
        model: String,
        input: String,
        /// Shape of the model's input; -1 is variable.
        expected: Vec<i64>,
        got: Vec<usize>,
    },
    #[error("inference request batch-size must be <= {limit} for '{model}', got {got}")]
    BatchSize { model: String, limit: usize, got: usize },
    #[error("input '{input}' batch size does not match other inputs for '{model}': expected {expected}, got {got}")]
    UnequalBatch {
        model: String,
        input: String,
        /// The first input's batch.
        expected: usize,
        got: usize,
    },
    #[error("unexpected inference output '{output}' for model '{model}'")]
    UnexpectedOutput { model: String, output: String },
    /// A raw binary request to a model that does not take one.
    #[error("raw binary request for model '{model}': {reason}")]
    Raw { model: String, reason: String },
    /// A photograph or a text for a model without a pipeline for it, or one that cannot be decoded.
    #[error("{reason}")]
    Content { reason: String },
    #[error("output '{output}' for model '{model}': {reason}")]
    Classification { model: String, output: String, reason: String },
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",")
}

fn dims<T: ToString>(shape: &[T]) -> String {
    format!("[{}]", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

/// A request that fits: tensors in the signature's order, indices of the outputs asked for, and the batch size.
#[derive(Debug)]
pub struct FittedRequest {
    /// In the signature's order.
    pub inputs: Vec<Tensor>,
    /// Indices into the signature's outputs, in the order asked for.
    pub outputs: Vec<usize>,
    /// Batch elements; 1 for a model without a batch dimension.
    pub batch: usize,
}

impl FittedRequest {
    /// The inputs with their names. The bytes are shared.
    pub fn named(&self, model: &LoadedModel) -> Vec<(String, Tensor)> {
        let names = model.signature.inputs.iter().map(|port| port.name.clone());
        names.zip(self.inputs.iter().cloned()).collect()
    }
}

/// Checks a request against the model.
pub fn fit(
    model: &LoadedModel,
    inputs: CallInputs,
    outputs: Option<&[OutputRequest]>,
) -> Result<FittedRequest, InvalidRequest> {
    let inputs = match inputs {
        CallInputs::Named(named) => order(model, named)?,
        CallInputs::Raw(bytes) => vec![raw(model, bytes)?],
    };

    let mut batch = 1;
    for (index, (tensor, port)) in inputs.iter().zip(&model.signature.inputs).enumerate() {
        check(model, tensor, port)?;
        if let (Some(limit), Some(&got)) = (model.batch_limit, tensor.shape().first()) {
            if got > limit {
                return Err(InvalidRequest::BatchSize { model: model.name.to_string(), limit, got });
            }
            if index > 0 && got != batch {
                let (model, input) = (model.name.to_string(), port.name.clone());
                return Err(InvalidRequest::UnequalBatch { model, input, expected: batch, got });
            }
            batch = got;
        }
    }

    let ports = &model.signature.outputs;
    let outputs = match outputs {
        None => (0..ports.len()).collect(),
        Some(wanted) => wanted
            .iter()
            .map(|wanted| {
                ports.iter().position(|port| port.name == wanted.name).ok_or_else(|| InvalidRequest::UnexpectedOutput {
                    model: model.name.to_string(),
                    output: wanted.name.clone(),
                })
            })
            .collect::<Result<_, _>>()?,
    };
    Ok(FittedRequest { inputs, outputs, batch })
}

/// The content in tensors for a model with a pipeline that takes texts, or a file as chains do: a tensor of strings
/// named [`Texts::TENSOR`], or the only string of the only tensor. `None` for the inputs of the model itself.
pub fn content_of(model: &LoadedModel, inputs: &CallInputs) -> Result<Option<CallContent>, TextError> {
    let CallInputs::Named(named) = inputs else { return Ok(None) };
    let [(name, tensor)] = named.as_slice() else { return Ok(None) };
    match model.input() {
        Some(PipelineInput::Texts) if name == Texts::TENSOR && tensor.datatype() == DataType::Bytes => {
            Texts::from_tensor(tensor).map(|texts| Some(CallContent::Texts(texts)))
        }
        Some(input) if model.is_chain() => {
            let mut strings = tensor.strings().into_iter().flatten();
            let only = strings.next().filter(|_| strings.next().is_none());
            Ok(only.and_then(|file| CallContent::of_whole_file(input, tensor.data().slice_ref(file))))
        }
        _ => Ok(None),
    }
}

/// Leaves the outputs that a call asked for, in its order, of those that a pipeline made.
pub fn select(response: &mut InferResponse, wanted: &[OutputRequest]) -> Result<(), InvalidRequest> {
    let find = |wanted: &OutputRequest| {
        let mut outputs = response.outputs.iter();
        let found = outputs.find(|(name, _)| *name == wanted.name && wanted.classification.is_none());
        found.cloned().ok_or_else(|| InvalidRequest::UnexpectedOutput {
            model: response.model.to_string(),
            output: wanted.name.clone(),
        })
    };
    response.outputs = wanted.iter().map(find).collect::<Result<_, _>>()?;
    Ok(())
}

/// Estimates the bytes of the outputs asked for. An output of unknown size is taken to be as large as the inputs.
pub fn output_bytes(model: &LoadedModel, inputs: &CallInputs, wanted: Option<&[OutputRequest]>) -> usize {
    if inputs.bytes() <= UNCOUNTED_BYTES_MAX {
        return 0;
    }
    let is_wanted =
        |port: &&ModelPort| wanted.is_none_or(|wanted| wanted.iter().any(|output| output.name == port.name));
    let bytes = |port: &ModelPort| {
        let (batch, dims) = match (model.batch_limit, port.shape.split_first()) {
            (Some(_), Some((_, dims))) => (inputs.batch(), dims),
            _ => (1, port.shape.as_slice()),
        };
        let dims = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>()?;
        element_count(&dims)?.checked_mul(port.datatype.size()?)?.checked_mul(batch)
    };
    let outputs = model.signature.outputs.iter().filter(is_wanted);
    outputs.map(|port| bytes(port).unwrap_or_else(|| inputs.bytes())).fold(0, usize::saturating_add)
}

fn order(model: &LoadedModel, named: Vec<(String, Tensor)>) -> Result<Vec<Tensor>, InvalidRequest> {
    let ports = &model.signature.inputs;
    let mut slots: Vec<Option<Tensor>> = vec![None; ports.len()];
    let got: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    for (name, tensor) in named {
        let index = ports.iter().position(|port| port.name == name);
        let Some(slot) = index.and_then(|index| slots.get_mut(index)) else {
            return Err(InvalidRequest::UnexpectedInput { model: model.name.to_string(), input: name });
        };
        if slot.replace(tensor).is_some() {
            return Err(InvalidRequest::DuplicateInput { input: name });
        }
    }
    let missing: Vec<String> =
        slots.iter().zip(ports).filter(|(slot, _)| slot.is_none()).map(|(_, port)| port.name.clone()).collect();
    if !missing.is_empty() {
        return Err(InvalidRequest::MissingInputs {
            model: model.name.to_string(),
            expected: ports.len(),
            got,
            missing,
        });
    }
    Ok(slots.into_iter().flatten().collect())
}

fn check(model: &LoadedModel, tensor: &Tensor, port: &ModelPort) -> Result<(), InvalidRequest> {
    if tensor.datatype() != port.datatype {
        return Err(InvalidRequest::DataType {
            model: model.name.to_string(),
            input: port.name.clone(),
            expected: port.datatype,
            got: tensor.datatype(),
        });
    }
    if port.takes_shape(tensor.shape()) {
        return Ok(());
    }
    Err(InvalidRequest::Shape {
        model: model.name.to_string(),
        input: port.name.clone(),
        expected: port.shape.clone(),
        got: tensor.shape().to_vec(),
    })
}

/// The one input of a raw binary request: batch 1, and the one variable dimension follows from the byte count.
fn raw(model: &LoadedModel, bytes: bytes::Bytes) -> Result<Tensor, InvalidRequest> {
    let error = |reason: String| InvalidRequest::Raw { model: model.name.to_string(), reason };
    let [port] = model.signature.inputs.as_slice() else {
        return Err(error(format!("the model has {} inputs, expected exactly one", model.signature.inputs.len())));
    };
    let mut shape: Vec<Option<usize>> = port.shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    if model.batch_limit.is_some()
        && let Some(first) = shape.first_mut()
    {
        *first = Some(1);
    }

    let Some(size) = port.datatype.size() else {
        let one: Vec<usize> = shape.iter().map(|dim| dim.unwrap_or(1)).collect();
        if one.iter().any(|&dim| dim != 1) {
            return Err(error("a BYTES input takes a raw request only for one element".to_owned()));
        }
        let mut data = Vec::with_capacity(bytes.len() + 4);
        push_string(&mut data, &bytes);
        return Tensor::new(DataType::Bytes, one, data.into()).map_err(|reason| error(reason.to_string()));
    };

    let variable = shape.iter().filter(|dim| dim.is_none()).count();
    if variable > 1 {
        return Err(error(format!("input '{}' has {variable} variable dimensions, at most one is allowed", port.name)));
    }
    let known: Vec<usize> = shape.iter().flatten().copied().collect();
    let fixed = element_count(&known).and_then(|count| count.checked_mul(size)).unwrap_or(usize::MAX);
    if let Some(free) = shape.iter_mut().find(|dim| dim.is_none()) {
        *free = bytes.len().checked_div(fixed);
    }
    let shape: Vec<usize> = shape.into_iter().map(|dim| dim.unwrap_or(0)).collect();
    Tensor::new(port.datatype, shape, bytes)
        .map_err(|reason| error(format!("input byte size mismatch for input '{}': {reason}", port.name)))
}
