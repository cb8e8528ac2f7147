//! The messages of an ONNX file, with the fields that are read.

use prost::Message;

use crate::onnx::tensor::{StringStringEntryProto, TensorProto};

#[derive(Message)]
pub(super) struct ModelProto {
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    pub(super) metadata_props: Vec<StringStringEntryProto>,
    #[prost(message, repeated, tag = "20")]
    pub(super) training_info: Vec<TrainingInfoProto>,
    #[prost(message, repeated, tag = "25")]
    pub(super) functions: Vec<FunctionProto>,
}

#[derive(Message)]
pub(super) struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(int64, tag = "2")]
    pub(super) version: i64,
}

#[derive(Message)]
pub(super) struct TrainingInfoProto {
    #[prost(message, optional, tag = "1")]
    pub(super) initialization: Option<GraphProto>,
    #[prost(message, optional, tag = "2")]
    pub(super) algorithm: Option<GraphProto>,
}

#[derive(Message)]
pub(super) struct FunctionProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, repeated, tag = "4")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(super) output: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub(super) node: Vec<NodeProto>,
    #[prost(string, tag = "10")]
    pub(super) domain: String,
    /// The attributes with a default.
    #[prost(message, repeated, tag = "11")]
    pub(super) attribute_proto: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "13")]
    pub(super) value_info: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub(super) sparse_initializer: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub(super) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(int64, tag = "3")]
    pub(super) i: i64,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    pub(super) g: Option<GraphProto>,
    #[prost(int64, repeated, tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(message, repeated, tag = "10")]
    pub(super) tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(super) graphs: Vec<GraphProto>,
    #[prost(message, optional, tag = "22")]
    pub(super) sparse_tensor: Option<SparseTensorProto>,
    #[prost(message, repeated, tag = "23")]
    pub(super) sparse_tensors: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub(super) values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    pub(super) indices: Option<TensorProto>,
    #[prost(int64, repeated, tag = "3")]
    pub(super) dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub(super) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<DimProto>,
}

/// A dimension; without a value it is variable.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DimProto {
    #[prost(int64, optional, tag = "1")]
    pub(super) dim_value: Option<i64>,
}
