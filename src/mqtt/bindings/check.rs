//! Compares bindings with their feature views and models, to report misfits before the first message. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use ledge_base::names::ModelName;
use ledge_engine::pipeline::content::PipelineInput;
use ledge_features::online::{PushTarget, listed};
use ledge_features::registry::Registry;
use ledge_features::view::{FeatureView, ViewField};
use ledge_models::repository::model_config::{ModelConfig, PortConfig};

use super::config::BindingConfig;
use super::value_kind::ValueKind;

/// A part of a binding that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingProblem {
    /// Its key within the binding.
    pub key: String,
    /// The reason, and the remedy.
    pub reason: String,
    pub effect: MisfitEffect,
}

/// The effect of a misfit on every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MisfitEffect {
    Refused,
    /// This part of the message is ignored.
    PartIgnored,
    /// The other features of the entity become null.
    OthersErased,
}

impl BindingProblem {
    fn refuses(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into(), effect: MisfitEffect::Refused }
    }

    fn ignores(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into(), effect: MisfitEffect::PartIgnored }
    }
}

/// The model of a binding, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub struct BindingModel<'a> {
    pub name: &'a ModelName,
    /// Its `model.toml`.
    pub config: &'a ModelConfig,
    /// The names of its inputs; `None` where only a runtime knows them.
    pub inputs: Option<&'a [String]>,
}

/// Finds the parts of a binding that do not fit the declared feature views.
pub fn against_views(binding: &BindingConfig, registry: &Registry) -> Vec<BindingProblem> {
    let Some(target) = binding.target() else { return unknown_entities(binding, registry) };
    let views = match registry.targets(&target) {
        Ok(views) => views,
        Err(missing) => {
            let key = match target {
                PushTarget::View(_) => "feature_view",
                PushTarget::Source(_) => "push_source",
            };
            return vec![BindingProblem::refuses(key, format!("{missing}: declare it"))];
        }
    };

    let mut problems = Vec::new();
    if let Some(name) = &binding.value {
        return unknown_keys(binding, &views).chain(value_against_views(binding, name, &views)).collect();
    }
    let named = |name: &str| binding.features.contains_key(name) || binding.entities.contains_key(name);
    for name in binding.features.keys().filter(|name| !views.iter().any(|view| view.has_column(name))) {
        let reason = format!("is no column of {}", with_columns(&views));
        problems.push(BindingProblem::ignores(format!("features.{name}"), reason));
    }
    problems.extend(unknown_keys(binding, &views));
    // Without `features`, columns are taken by name, and only a message shows which it has.
    if binding.features.is_empty() {
        return problems;
    }

    let mut lacks = false;
    for view in &views {
        for field in view.fields.iter().filter(|field| !field.optional && !named(&field.name)) {
            lacks = true;
            let problem = format!(
                "do not include {:?}, which the feature view '{}' needs: add its path in a message, or declare it \
                 optional",
                &*field.name, view.name
            );
            problems.push(BindingProblem::refuses("features", problem));
        }
    }
    let has_feature = views.iter().flat_map(|view| &view.fields).any(|field| named(&field.name));
    if !has_feature && !lacks {
        problems.push(BindingProblem::refuses("features", format!("include no feature of {}", with_columns(&views))));
    }
    problems
}

/// The entity keys that are not a column of the views.
fn unknown_keys<'b>(
    binding: &'b BindingConfig,
    views: &'b [Arc<FeatureView>],
) -> impl Iterator<Item = BindingProblem> + 'b {
    let unknown = binding.entities.keys().filter(|name| !views.iter().any(|view| view.has_column(name)));
    unknown.map(|name| {
        let keys: BTreeSet<&str> = views.iter().flat_map(|view| &view.join_keys).map(|key| &*key.name).collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let reason = format!("is no join key of {}, which has {}", names_of(views), listed(&keys));
        BindingProblem::ignores(format!("entities.{name}"), reason)
    })
}

/// The misfits of messages that are the value of one feature: no other feature and no key can be in them.
fn value_against_views(binding: &BindingConfig, name: &str, views: &[Arc<FeatureView>]) -> Vec<BindingProblem> {
    let mut problems = Vec::new();
    let mut fields = views.iter().flat_map(|view| &view.fields);
    match fields.find(|field| &*field.name == name).map(|field| field.value_type) {
        None => {
            problems
                .push(BindingProblem::refuses("value", format!("{name:?} is no column of {}", with_columns(views))));
        }
        Some(kind) if ValueKind::of_feature(kind).is_none() => {
            problems.push(BindingProblem::refuses("value", format!("{name:?} is {kind}, and a message is one value")));
        }
        Some(_) => {}
    }
    let is_given = |column: &str| column == name || binding.entities.contains_key(column);
    for view in views {
        // A row has all features of its view, and replaces the last one.
        let others: Vec<_> = view.fields.iter().filter(|field| !is_given(&field.name)).collect();
        let (lacking, erased): (Vec<_>, Vec<_>) = others.into_iter().partition(|field| !field.optional);
        let names = |fields: &[&ViewField]| listed(&fields.iter().map(|field| &field.name).collect::<Vec<_>>());
        let (view, remedy) = (&view.name, "declare a separate feature view for each value");
        if !lacking.is_empty() {
            let problem =
                format!("is one feature, and the feature view '{view}' needs {} too: {remedy}", names(&lacking));
            problems.push(BindingProblem::refuses("value", problem));
        } else if !erased.is_empty() {
            let reason = format!(
                "is one feature, and each message would set {} of the feature view '{view}' to null: {remedy}",
                names(&erased)
            );
            problems.push(BindingProblem { key: "value".into(), reason, effect: MisfitEffect::OthersErased });
        }
    }
    let keys: BTreeSet<&str> = views.iter().flat_map(|view| &view.join_keys).map(|key| &*key.name).collect();
    for key in keys.into_iter().filter(|key| !binding.entities.contains_key(*key)) {
        let problem = format!("do not include {key:?}, a join key of {}: add its place in the topic", names_of(views));
        problems.push(BindingProblem::refuses("entities", problem));
    }
    problems
}

/// The entity keys for a model that are not the key of any view.
fn unknown_entities(binding: &BindingConfig, registry: &Registry) -> Vec<BindingProblem> {
    let is_key = |name: &str| registry.views().any(|view| view.has_join_key(name));
    let unknown = binding.entities.keys().filter(|name| !is_key(name));
    unknown
        .map(|name| BindingProblem::ignores(format!("entities.{name}"), "is a join key of no feature view"))
        .collect()
}

fn names_of(views: &[Arc<FeatureView>]) -> String {
    match views {
        [view] => format!("the feature view '{}'", view.name),
        views => format!("the feature views {}", listed(&views.iter().map(|view| &view.name).collect::<Vec<_>>())),
    }
}

fn with_columns(views: &[Arc<FeatureView>]) -> String {
    let columns: BTreeSet<&str> = views.iter().flat_map(|view| &view.fields).map(|field| &*field.name).collect();
    format!("{}, which has {}", names_of(views), listed(&columns.into_iter().collect::<Vec<_>>()))
}

/// Finds the parts of a binding that do not fit its model.
pub fn against_model(binding: &BindingConfig, registry: &Registry, model: BindingModel<'_>) -> Vec<BindingProblem> {
    let (name, mut problems) = (model.name, Vec::new());
    let content =
        [("photograph", &binding.photograph, PipelineInput::Photograph), ("text", &binding.text, PipelineInput::Texts)];
    if let Some((key, _, input)) = content.into_iter().find(|(_, path, _)| path.is_some()) {
        let pipeline = &model.config.pipeline;
        let is_document = input == PipelineInput::Photograph && pipeline.takes(PipelineInput::Document);
        if !pipeline.takes(input) && !is_document {
            let problem = format!("is for a model with {} in its model.toml, and {name} has none", input.sections());
            problems.push(BindingProblem::refuses(key, problem));
        }
        return problems;
    }
    if let Some(value) = binding.value.as_ref().filter(|_| binding.target().is_none()) {
        let Some(section) = model.config.pipeline.section() else {
            return against_inputs(binding, registry, model);
        };
        if section.kind().input != PipelineInput::Rows {
            let problem = format!(
                "is for a model of a table or of tensors, and {name} has [pipeline.{}] in its model.toml",
                section.kind().name
            );
            return vec![BindingProblem::refuses("value", problem)];
        }
        if section.column_type(value).is_none() {
            let problem = format!("{value:?} is no column of the model {name} in its [pipeline.table]");
            problems.push(BindingProblem::refuses("value", problem));
        }
        let lacking: Vec<&str> = section.required_columns().into_iter().filter(|column| column != value).collect();
        let lacking: Vec<&str> = lacking.into_iter().filter(|column| !binding.entities.contains_key(*column)).collect();
        if !lacking.is_empty() {
            let problem = format!(
                "is one column, and the model {name} needs {} too: give them a default or a feature in its model.toml",
                listed(&lacking)
            );
            problems.push(BindingProblem::refuses("value", problem));
        }
        return problems;
    }
    let takes_rows = !binding.inputs.is_empty() || !binding.entities.is_empty() || binding.target().is_some();
    if takes_rows {
        return against_inputs(binding, registry, model);
    }
    // The message is the whole request.
    problems
}

/// Finds the inputs of a model that a binding does not give, or that the model does not have.
fn against_inputs(binding: &BindingConfig, registry: &Registry, model: BindingModel<'_>) -> Vec<BindingProblem> {
    let (name, mut problems) = (model.name, Vec::new());
    let is_made = |input: &str| model.config.feature_inputs().any(|port| port.name == input);
    if let Some(inputs) = model.inputs {
        let value = binding.value.as_ref().filter(|_| binding.target().is_none());
        if let Some(value) = value.filter(|value| !inputs.contains(value)) {
            let problem = format!("{value:?} is no input of the model {name}, which has {}", listed(inputs));
            problems.push(BindingProblem::refuses("value", problem));
        }
        for unknown in binding.inputs.keys().filter(|input| !inputs.contains(input)) {
            let problem = format!("is no input of the model {name}, which has {}", listed(inputs));
            problems.push(BindingProblem::refuses(format!("inputs.{unknown}"), problem));
        }
        for lacking in inputs.iter().filter(|input| !binding.gives(input) && !is_made(input)) {
            let problem = format!(
                "do not include {lacking:?}, which the model {name} needs: add the paths of its elements in a message, \
                 or make it of features in its model.toml"
            );
            problems.push(BindingProblem::refuses("inputs", problem));
        }
    }

    let given = |key: &str| match binding.target().map(|target| registry.targets(&target)) {
        None => binding.entities.contains_key(key),
        // The rows that are pushed have the join keys of their views.
        Some(views) => views.is_ok_and(|views| views.iter().any(|view| view.has_join_key(key))),
    };
    let looked_up = model.config.feature_inputs().filter(|port| !binding.gives(&port.name));
    for key in join_keys(looked_up, registry).into_iter().filter(|key| !given(key)) {
        let problem = format!(
            "do not include {key:?}, the join key by which the features of the model {name} are looked up: add its \
             place in the topic or in a message"
        );
        problems.push(BindingProblem::refuses("entities", problem));
    }
    problems
}

/// The join keys of the features that inputs are made of, as far as they are declared.
fn join_keys<'p>(inputs: impl Iterator<Item = &'p PortConfig>, registry: &Registry) -> BTreeSet<String> {
    let features = inputs.flat_map(|port| &port.features).map(|feature| &feature.feature);
    let views = features.filter_map(|feature| registry.view(feature.view()).ok());
    views.flat_map(|view| &view.join_keys).map(|key| key.name.to_string()).collect()
}
