//! `ledge mqtt try`: a dry run of a message, without a broker.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use ledge_base::names::{DeviceName, ModelName};
use ledge_base::principal::Principal;
use ledge_features::online::{self, PushTarget};
use ledge_identity::authentication::Authenticator;
use ledge_mqtt::binding_message::DryRunRows;
use ledge_mqtt::bindings::Bindings;
use ledge_mqtt::client::packet::{MessageProperties, MqttMessage, Qos};
use ledge_mqtt::dry_run::{DryRun, DryRunRecipient, DryRunResult};
use ledge_mqtt::topics::{DeviceTopics, TopicName};
use ledge_service::audit_event::AuditSink;
use serde_json::{Value, json};

use super::topics;
use crate::cli::{Exit, Output, block_on};
use crate::config::Config;
use crate::daemon::Standalone;

/// The arguments of `ledge mqtt try`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MqttTryArgs {
    /// The topic that the message is published to.
    pub topic: TopicName,
    /// The file with the content of the message, or - for standard input.
    pub file: PathBuf,
    /// The content type of the message, such as image/jpeg. Most devices send none.
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// A user property of the message, such as priority=batch. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = property)]
    pub property: Vec<(String, String)>,
    /// The response topic of the message: the topic for the answer.
    #[arg(long, value_name = "TOPIC")]
    pub response_topic: Option<String>,
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge mqtt try cameras/door/snapshot coffee.png
  echo '{\"temp\": 21.5}' | ledge mqtt try plant/hall/reading -
  ledge mqtt try ledge/v1/till-7/infer/add_sub request.json --response-topic till/answers --json";

fn property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the verb.
pub fn run(config: &Config, args: &MqttTryArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let payload = read(&args.file)?;
    let topics = topics::topics(config)?;
    let bindings = Bindings::new(&config.mqtt.bindings);
    let properties = MessageProperties {
        response_topic: args.response_topic.clone(),
        content_type: args.content_type.clone(),
        user: args.property.clone(),
        ..MessageProperties::default()
    };

    let handled = block_on(async {
        // The events of a command are not recorded.
        let audit = AuditSink::to_nowhere();
        let authenticator = Authenticator::open(&config.access, &config.state.path, audit.clone());
        let serving = &*Standalone::new(config, audit);
        let max_payload = config.mqtt.max_payload_bytes;
        let dry_run = DryRun {
            topics: &topics,
            bindings: &bindings,
            authenticator: &authenticator,
            serving,
            max_payload,
            response_topics: &config.mqtt.response_topics,
        };
        let handled = dry_run.run(args.topic.clone(), payload, properties).await;
        serving.repository().unload_all(&Principal::Local).await;
        handled
    })?;

    // A message that every binding skips has no recipient.
    let is_taken = handled.iter().any(|handled| handled.unmet.is_none());
    let good = is_taken && handled.iter().all(|handled| handled.problem.is_none());
    if args.json {
        let handled: Vec<Value> = handled.iter().map(as_json).collect();
        let report = json!({"topic": args.topic.as_str(), "device": topics.device.as_str(), "handled": handled});
        writeln!(out, "{report:#}")?;
    } else {
        if config.mqtt.broker.is_none() {
            writeln!(out, "No broker is set (mqtt.broker), so this box receives no messages yet.")?;
        }
        topics::note_unnamed(config, &topics, out)?;
        if handled.is_empty() {
            writeln!(out, "{}", no_recipient(&args.topic, &topics, &bindings))?;
        }
        for handled in &handled {
            write!(out, "{}", text(handled, &topics))?;
        }
    }
    Ok(if good { Exit::Success } else { Exit::Failure })
}

fn read(file: &Path) -> anyhow::Result<Bytes> {
    let mut content = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut content).context("cannot read standard input")?;
    } else {
        content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    Ok(content.into())
}

/// The text for a message that nothing takes, with the topics that are taken.
fn no_recipient(topic: &TopicName, topics: &DeviceTopics, bindings: &Bindings) -> String {
    let group = topics.group_infer().map(|group| format!(", calls to its group to {}", group.unshared()));
    let filters: Vec<_> = bindings.iter().map(|binding| binding.config().topic.as_str()).collect();
    let bound = match filters.as_slice() {
        [] => "there are no bindings".to_owned(),
        filters => format!("its bindings take {}", filters.join(", ")),
    };
    let (own, group) = (topics.infer(), group.unwrap_or_default());
    format!("Nothing takes {topic}. Calls to this box go to {own}{group}; {bound}.")
}

fn as_json(handled: &DryRunResult) -> Value {
    let mut row = match &handled.recipient {
        DryRunRecipient::Call { owner } => json!({"by": "call", "owner": owner.as_ref().map(DeviceName::as_str)}),
        DryRunRecipient::Binding { binding, captures } => {
            let max_rate = &binding.config().max_rate;
            json!({"by": "binding", "binding": binding.name(), "captures": captures, "max_rate": max_rate})
        }
    };
    let message = handled.message.as_ref().map(|message| {
        json!({
            "topic": message.topic.as_str(),
            "qos": qos(message),
            "retain": message.retain,
            "content_type": message.properties.content_type,
            "user_properties": message.properties.user,
            "payload_bytes": message.payload.len(),
            "payload": std::str::from_utf8(&message.payload).ok(),
        })
    });
    if let Some(row) = row.as_object_mut() {
        row.insert("principal".into(), json!(handled.principal.as_ref().map(ToString::to_string)));
        row.insert("model".into(), json!(handled.model.as_ref().map(ModelName::as_str)));
        row.insert("pushes".into(), pushed_json(handled));
        row.insert("ignored".into(), json!(handled.rows.as_ref().map_or(&[][..], |rows| &rows.ignored)));
        row.insert("unused".into(), json!(handled.rows.as_ref().map_or(&[][..], |rows| &rows.unused)));
        row.insert("not_loaded".into(), json!(handled.not_loaded));
        row.insert("not_asked".into(), json!(handled.not_asked));
        row.insert("publishes".into(), json!(message));
        row.insert("problem".into(), json!(handled.problem));
        row.insert("unmet".into(), json!(handled.unmet));
    }
    row
}

fn text(handled: &DryRunResult, topics: &DeviceTopics) -> String {
    if let (DryRunRecipient::Binding { binding, captures }, Some(unmet)) = (&handled.recipient, &handled.unmet) {
        let name = binding.name();
        return format!("The binding {name} does not take it{}, because of its `when`: {unmet}\n", captured(captures));
    }
    let mut lines = vec![match &handled.recipient {
        DryRunRecipient::Call { owner } => {
            let recipient = match owner {
                Some(owner) if *owner == topics.device => format!("to this box, {owner}"),
                Some(group) => format!("to the group {group}, of which one box answers"),
                None => "that names no model".to_owned(),
            };
            let caller = handled.principal.as_ref().map(|principal| format!(", by {principal}")).unwrap_or_default();
            format!("An inference call {recipient}{}{caller}", for_model(handled))
        }
        DryRunRecipient::Binding { binding, captures } => {
            format!("The binding {} takes it{}{}", binding.name(), captured(captures), for_model(handled))
        }
    }];
    if let DryRunRecipient::Binding { binding, .. } = &handled.recipient {
        let config = binding.config();
        if config.max_rate.is_set() {
            let rate = config.max_rate;
            lines.push(format!("  at most {rate} messages a second from each topic; the newest is kept"));
        }
        if config.shared {
            lines.push("  one box of the group gets each message".to_owned());
        }
    }
    lines.extend(pushed(handled));
    if let Some(reason) = &handled.not_loaded {
        lines.push(format!("  the model is not loaded: {reason}"));
    }
    if let Some(reason) = &handled.not_asked {
        lines.push(format!("  the model does not run here: {reason}"));
    }
    if let Some(problem) = &handled.problem {
        lines.push(format!("  no result: {problem}"));
    }
    match &handled.message {
        None if handled.not_asked.is_some() => {}
        Some(message) => lines.extend(published(message)),
        None if handled.model.is_none() && handled.rows.is_some() => {}
        None => lines.push("  publishes nothing".to_owned()),
    }
    lines.join("\n") + "\n"
}

/// The feature view or push source of a binding, and the rows that it would push. Null where nothing is pushed.
fn pushed_json(handled: &DryRunResult) -> Value {
    let Some((target, rows)) = target(handled).zip(handled.rows.as_ref().filter(|rows| !rows.is_refused)) else {
        return Value::Null;
    };
    let (kind, name) = match &target {
        PushTarget::View(name) => ("feature_view", name),
        PushTarget::Source(name) => ("push_source", name),
    };
    let df: serde_json::Map<_, _> =
        rows.columns.iter().map(|(name, cells)| (name.clone(), Value::Array(cells.clone()))).collect();
    json!({kind: name, "df": df})
}

fn target(handled: &DryRunResult) -> Option<PushTarget> {
    match &handled.recipient {
        DryRunRecipient::Binding { binding, .. } => binding.config().target(),
        DryRunRecipient::Call { .. } => None,
    }
}

/// The rows that would be pushed; this pushes nothing.
fn pushed(handled: &DryRunResult) -> Vec<String> {
    let Some((target, rows)) = target(handled).zip(handled.rows.as_ref()) else { return Vec::new() };
    let DryRunRows { columns, is_refused, ignored, unused } = rows;
    let destination = match target {
        PushTarget::View(name) => format!("the feature view {name}"),
        PushTarget::Source(name) => format!("the push source {name}"),
    };
    let count = columns.first().map_or(0, |(_, cells)| cells.len());
    let rows = if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
    let mut lines = vec![if *is_refused {
        format!("  {rows} for {destination}, which would be refused")
    } else {
        format!("  would push {rows} to {destination}; this pushes nothing")
    }];
    lines.extend(columns.iter().map(|(name, cells)| format!("    {name}: {}", listed(cells))));
    if !ignored.is_empty() {
        lines.push(format!("  ignored, as no feature view has these columns: {}", online::listed(ignored)));
    }
    if !unused.is_empty() {
        lines.push(format!("  fields of the message that are not columns: {}", online::listed(unused)));
    }
    lines
}

/// The first cells, and the number of the others.
fn listed(cells: &[Value]) -> String {
    const LISTED_MAX: usize = 5;
    let mut texts: Vec<String> = cells.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    if cells.len() > LISTED_MAX {
        texts.push(format!("and {} more", cells.len() - LISTED_MAX));
    }
    texts.join(", ")
}

fn for_model(handled: &DryRunResult) -> String {
    handled.model.as_ref().map(|model| format!(", for the model {model}")).unwrap_or_default()
}

/// The parts of the topic that the wildcards match, by their names in templates.
fn captured(captures: &[String]) -> String {
    let one = |(index, capture): (usize, &String)| format!("{{{}}} = {capture}", index + 1);
    let all: Vec<_> = captures.iter().enumerate().map(one).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn published(message: &MqttMessage) -> Vec<String> {
    let retained = if message.retain { ", retained" } else { "" };
    let mut lines = vec![format!("  publishes to {} with QoS {}{retained}", message.topic, qos(message))];
    if let Some(kind) = &message.properties.content_type {
        lines.push(format!("    content type: {kind}"));
    }
    lines.extend(message.properties.user.iter().map(|(name, value)| format!("    {name}: {value}")));
    let bytes = message.payload.len();
    match std::str::from_utf8(&message.payload) {
        Ok(text) => {
            lines.push(format!("    payload of {bytes} bytes:"));
            lines.push(text.to_owned());
        }
        Err(_) => lines.push(format!("    payload of {bytes} bytes, binary")),
    }
    lines
}

fn qos(message: &MqttMessage) -> u8 {
    match message.qos {
        Qos::AtMostOnce => 0,
        Qos::AtLeastOnce => 1,
    }
}
