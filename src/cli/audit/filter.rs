//! The filter for records.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use ledge_audit::record::{ActorKind, AuditRecord};
use ledge_audit::tags;
use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::tag::{Tag, TagKey};
use serde_json::Value;

use super::super::GlobalArgs;

/// The most combinations of types for the join keys of an entity: each value is tried as text and as a JSON value.
const KEY_READINGS_MAX: usize = 256;

/// The options that select records.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Filters")]
pub struct AuditFilterArgs {
    /// The earliest time: RFC 3339 such as 2026-01-01T00:00:00Z, or an age such as 90s, 15m, 2h, 7d.
    #[arg(long, value_name = "TIME")]
    pub since: Option<TimeBound>,
    /// The latest time, in the same form as --since.
    #[arg(long, value_name = "TIME")]
    pub until: Option<TimeBound>,
    /// The action of the record, such as model_loaded. Can be repeated.
    #[arg(long, value_name = "ACTION", value_parser = PossibleValuesParser::new(AuditEvent::ACTIONS))]
    #[arg(hide_possible_values = true)]
    pub action: Vec<String>,
    /// The model that the record is about.
    #[arg(long, value_name = "NAME")]
    pub model: Option<ModelName>,
    /// The feature view that the record is about.
    #[arg(long, value_name = "NAME")]
    pub feature_view: Option<String>,
    /// The entity that was read or pushed, as JOIN_KEY=VALUE. Repeat the option for each join key of the entity.
    ///
    /// A record of many rows does not list all entities; --feature-view finds such a record too.
    #[arg(long, value_name = "JOIN_KEY=VALUE", value_parser = join_key)]
    pub entity: Vec<(String, String)>,
    /// The caller: ip:10.0.0.7, uid:1000, key:NAME, cert:NAME, person:NAME, mqtt:TOPIC, camera:NAME, inbox:NAME, local, others, or a tag from a
    /// record.
    ///
    /// Records contain tags instead of callers. The tags of this caller are computed with all tag keys that this box
    /// still has.
    #[arg(long, value_name = "CALLER")]
    pub actor: Option<String>,
    /// The photograph of an inference call, exactly as it was sent. Finds only calls that have a record of their own.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// The sequence numbers: 17, 17.., ..17 or 17..42. The last number is included.
    #[arg(long, value_name = "RANGE")]
    pub seq: Option<SeqRange>,
    /// Read all records for --since and --until.
    ///
    /// Without this option a binary search finds the time, which is only right if the clock of the box never went back.
    #[arg(long)]
    pub scan: bool,
}

/// A time or an age, as the argument of --since and --until.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeBound {
    /// A time, in milliseconds since the Unix epoch.
    At(u64),
    /// An age, in milliseconds before now.
    Ago(u64),
}

impl TimeBound {
    fn millis(self, now_ms: u64) -> u64 {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => now_ms.saturating_sub(ago),
        }
    }
}

impl FromStr for TimeBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ago = text.split_at_checked(text.len().saturating_sub(1)).and_then(|(number, unit)| {
            let unit = match unit {
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            number.parse::<u64>().ok()?.checked_mul(unit)
        });
        let at = || clock::parse_micros(text).and_then(|micros| u64::try_from(micros).ok()).map(|micros| micros / 1000);
        ago.map(Self::Ago).or_else(|| at().map(Self::At)).ok_or_else(|| {
            "expected a time such as 2026-01-01T00:00:00Z, or an age such as 90s, 15m, 2h, 7d".to_owned()
        })
    }
}

/// A range of sequence numbers, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqRange {
    pub first: u64,
    pub last: u64,
}

impl FromStr for SeqRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str, missing| if text.is_empty() { Some(missing) } else { text.parse().ok() };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (number(first, 0), number(last, u64::MAX)),
            None => (text.parse().ok(), text.parse().ok()),
        };
        let range = first.zip(last).filter(|(first, last)| first <= last);
        range.map(|(first, last)| Self { first, last }).ok_or_else(|| "expected 17, 17.., ..17 or 17..42".to_owned())
    }
}

/// The filter, with the tags that it needs.
#[derive(Debug, Clone)]
pub struct RecordFilter {
    /// In milliseconds since the Unix epoch.
    pub since: u64,
    pub until: u64,
    pub seq: SeqRange,
    /// Reads all records instead of searching for the time.
    pub scan: bool,
    actions: Vec<String>,
    model: Option<ModelName>,
    actor: Option<CallerFilter>,
    inputs: Option<Vec<Tag>>,
    feature_view: Option<String>,
    entities: Option<Vec<Tag>>,
}

#[derive(Debug, Clone)]
enum CallerFilter {
    Kind(ActorKind),
    Tags(Vec<Tag>),
}

impl AuditFilterArgs {
    /// Computes the tags, with the keys of this box.
    pub fn resolve(&self, globals: &GlobalArgs) -> anyhow::Result<RecordFilter> {
        let now_ms = clock::unix_millis();
        let actor = self.actor.as_deref().map(|actor| caller(actor, globals)).transpose()?;
        let inputs = self.input.as_ref().map(|path| {
            let photograph = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
            let keys = keys(globals)?;
            Ok::<_, anyhow::Error>(keys.iter().map(|key| key.of_photograph(&photograph)).collect())
        });
        let entities = (!self.entity.is_empty()).then(|| entities(&self.entity, globals)).transpose()?;
        Ok(RecordFilter {
            since: self.since.map_or(0, |since| since.millis(now_ms)),
            until: self.until.map_or(u64::MAX, |until| until.millis(now_ms)),
            seq: self.seq.unwrap_or(SeqRange { first: 0, last: u64::MAX }),
            scan: self.scan,
            actions: self.action.clone(),
            model: self.model.clone(),
            actor,
            inputs: inputs.transpose()?,
            feature_view: self.feature_view.clone(),
            entities,
        })
    }
}

fn keys(globals: &GlobalArgs) -> anyhow::Result<Vec<TagKey>> {
    let config = globals.load_config()?;
    let folder = &config.audit.path;
    let keys = tags::all(folder, &Sealer::load(&config.encryption)?)?;
    anyhow::ensure!(
        !keys.is_empty(),
        "{} has no tag keys: only the box that wrote the log can search it by caller, photograph or entity",
        folder.display()
    );
    Ok(keys)
}

/// Reads `JOIN_KEY=VALUE`.
pub fn join_key(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| "expected JOIN_KEY=VALUE".to_owned())
}

/// The entities that join keys may stand for. The text of a value does not say its type, so it is tried as a string and
/// as a JSON value.
pub fn readings(join_keys: &[(String, String)]) -> anyhow::Result<Vec<BTreeMap<&str, Value>>> {
    let mut readings: Vec<BTreeMap<&str, Value>> = vec![BTreeMap::new()];
    for (key, text) in join_keys {
        let typed = serde_json::from_str(text).ok().filter(|value: &Value| value.is_number() || value.is_boolean());
        let values = [Some(Value::from(text.as_str())), typed];
        let with = |known: &BTreeMap<_, _>, value: &Value| {
            let mut reading = known.clone();
            reading.insert(key.as_str(), value.clone());
            reading
        };
        readings =
            readings.iter().flat_map(|known| values.iter().flatten().map(move |value| with(known, value))).collect();
        anyhow::ensure!(
            readings.len() <= KEY_READINGS_MAX,
            "--entity names more join keys than a feature view can have"
        );
    }
    Ok(readings)
}

/// The tags of an entity.
fn entities(join_keys: &[(String, String)], globals: &GlobalArgs) -> anyhow::Result<Vec<Tag>> {
    let readings = readings(join_keys)?;
    let keys = keys(globals)?;
    Ok(keys.iter().flat_map(|key| readings.iter().map(|reading| key.of_entity(reading))).collect())
}

fn caller(text: &str, globals: &GlobalArgs) -> anyhow::Result<CallerFilter> {
    let name = match text.split_once(':') {
        None if text == "local" => return Ok(CallerFilter::Kind(ActorKind::Local)),
        None if text == "others" => return Ok(CallerFilter::Kind(ActorKind::Others)),
        // A tag is of the text that the daemon writes, so parse the address and write it in the same form.
        Some(("ip", address)) => {
            let address: std::net::IpAddr =
                address.parse().with_context(|| format!("{address:?} is not an IP address"))?;
            format!("ip:{address}")
        }
        Some(("uid" | "key" | "cert" | "person" | "mqtt" | "camera" | "inbox", _)) => text.to_owned(),
        _ => match text.parse::<Tag>() {
            Ok(tag) => return Ok(CallerFilter::Tags(vec![tag])),
            Err(_) => {
                bail!(
                    "{text:?} is not a caller: expected ip:ADDRESS, uid:NUMBER, key:NAME, cert:NAME, mqtt:TOPIC, camera:NAME, \
                     local, others or a tag"
                )
            }
        },
    };
    Ok(CallerFilter::Tags(keys(globals)?.iter().map(|key| key.of_text(&name)).collect()))
}

impl RecordFilter {
    /// True if the filter selects the record.
    pub fn matches(&self, record: &AuditRecord) -> bool {
        let in_time = (self.since..=self.until).contains(&record.ts.0);
        let in_range = (self.seq.first..=self.seq.last).contains(&record.seq);
        let of_action = self.actions.is_empty() || self.actions.iter().any(|action| action == record.event.action());
        let of_model = self.model.as_ref().is_none_or(|model| is_about(&record.event, model));
        let by_actor = self.actor.as_ref().is_none_or(|actor| match actor {
            CallerFilter::Kind(kind) => record.actor.kind == *kind,
            CallerFilter::Tags(tags) => record.actor.tag.is_some_and(|tag| tags.contains(&tag)),
        });
        let on_input = self.inputs.as_ref().is_none_or(|tags| match &record.event {
            AuditEvent::Inference { input: Some(input), .. } => tags.contains(input),
            _ => false,
        });
        let in_view = self.feature_view.as_ref().is_none_or(|view| feature_view(&record.event) == Some(view));
        let of_entity = self.entities.as_ref().is_none_or(|tags| match &record.event {
            AuditEvent::FeaturesRead { entities, .. } | AuditEvent::FeaturesPushed { entities, .. } => {
                entities.iter().any(|entity| tags.contains(entity))
            }
            AuditEvent::FeatureEntityDisclosed { entity: Some(entity), .. } => tags.contains(entity),
            _ => false,
        });
        in_time && in_range && of_action && of_model && by_actor && on_input && in_view && of_entity
    }
}

fn is_about(event: &AuditEvent, name: &ModelName) -> bool {
    match event {
        AuditEvent::ModelLoaded { model, .. }
        | AuditEvent::ModelRefused { model, .. }
        | AuditEvent::ModelFellBack { model, .. }
        | AuditEvent::ModelCrashed { model, .. }
        | AuditEvent::CallerRefused { model, .. }
        | AuditEvent::ModelUnloaded { model, .. }
        | AuditEvent::DriftReferenceFixed { model, .. } => model == name,
        AuditEvent::Inference { model, .. }
        | AuditEvent::InferenceMinute { model, .. }
        | AuditEvent::UnusualBegan { model, .. }
        | AuditEvent::UnusualEnded { model, .. }
        | AuditEvent::UnusualCalledNormal { model, .. }
        | AuditEvent::FeaturesRead { model, .. }
        | AuditEvent::FindingBegan { model, .. }
        | AuditEvent::FindingEnded { model, .. } => model.as_ref() == Some(name),
        AuditEvent::UpdateMoved { subject, .. } | AuditEvent::UpdateOrdered { subject, .. } => {
            subject.strip_prefix("models/") == Some(name.as_str())
        }
        _ => false,
    }
}

fn feature_view(event: &AuditEvent) -> Option<&String> {
    match event {
        AuditEvent::FeaturesRead { feature_view, .. }
        | AuditEvent::FeaturesPushed { feature_view, .. }
        | AuditEvent::UnusualRowCalledNormal { feature_view, .. } => Some(feature_view),
        AuditEvent::FeatureStoreBackedUp { feature_view } => feature_view.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use ledge_audit::record::{Actor, Timestamp, VERSION};
    use ledge_base::principal::Principal;

    #[test]
    fn a_time_bound_is_a_time_or_an_age() {
        assert_eq!("2h".parse(), Ok(TimeBound::Ago(7_200_000)));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(TimeBound::At(1000)));
        for bad in ["", "h", "-1h", "2w", "yesterday", "é", "99999999999999999999d"] {
            assert!(bad.parse::<TimeBound>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_range_has_both_its_ends() {
        let range = |first, last| Ok(SeqRange { first, last });
        assert_eq!("17".parse(), range(17, 17));
        assert_eq!("17..".parse(), range(17, u64::MAX));
        assert_eq!("..17".parse(), range(0, 17));
        assert_eq!("17..42".parse(), range(17, 42));
        for bad in ["", "42..17", "a", "1..2..3", "-1"] {
            assert!(bad.parse::<SeqRange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_action_must_exist() {
        #[derive(Debug, clap::Parser)]
        struct FilterCommand {
            #[command(flatten)]
            filter: AuditFilterArgs,
        }
        let parse = |action: &str| FilterCommand::try_parse_from(["tail", "--action", action]);
        for action in ["started", "inference", "log_begun", "stopped"] {
            assert_eq!(parse(action).unwrap().filter.action, [action]);
        }
        let refused = parse("startet").unwrap_err().to_string();
        assert!(refused.contains("possible values: started, ") && refused.contains("similar"), "{refused}");
    }

    #[test]
    fn a_record_is_found_by_each_of_its_traits_and_by_no_other() {
        let key = TagKey::new(2, [7; 32]);
        let caller: Principal = Principal::Peer("10.0.0.7".parse().unwrap());
        let event = AuditEvent::Inference {
            model: Some("m".parse().unwrap()),
            version: None,
            digest: None,
            outcome: ledge_service::audit_event::inference::CallOutcome::Ok,
            us: 1,
            input: Some(key.of_photograph(b"a photograph")),
            output: None,
        };
        let actor = Actor::of(&caller, Some(&key));
        let record = AuditRecord { v: VERSION, seq: 5, ts: Timestamp(1000), actor, event };
        let all = AuditFilterArgs::default().resolve(&GlobalArgs::default()).unwrap();
        assert!(all.matches(&record));

        let with = |change: &dyn Fn(&mut RecordFilter)| {
            let mut filter = all.clone();
            change(&mut filter);
            filter.matches(&record)
        };
        assert!(with(&|filter| filter.since = 1000) && !with(&|filter| filter.since = 1001));
        assert!(with(&|filter| filter.until = 1000) && !with(&|filter| filter.until = 999));
        let seq = |first, last| move |filter: &mut RecordFilter| filter.seq = SeqRange { first, last };
        assert!(with(&seq(5, 5)) && !with(&seq(6, 9)) && !with(&seq(0, 4)));
        let action = |action: &'static str| move |filter: &mut RecordFilter| filter.actions = vec![action.to_owned()];
        assert!(with(&action("inference")) && !with(&action("inference_minute")));
        let model = |name: &'static str| move |filter: &mut RecordFilter| filter.model = name.parse().ok();
        assert!(with(&model("m")) && !with(&model("n")));
        let tags = |tag: Tag| move |filter: &mut RecordFilter| filter.actor = Some(CallerFilter::Tags(vec![tag]));
        assert!(with(&tags(key.of_text("ip:10.0.0.7"))) && !with(&tags(key.of_text("ip:10.0.0.8"))));
        let input = |photograph: &'static [u8]| {
            let tag = key.of_photograph(photograph);
            move |filter: &mut RecordFilter| filter.inputs = Some(vec![tag])
        };
        assert!(with(&input(b"a photograph")) && !with(&input(b"another")));
        assert!(!with(&|filter| filter.actor = Some(CallerFilter::Kind(ActorKind::Local))));
        assert!(!with(&|filter| filter.feature_view = Some("customers".into())));
        assert!(!with(&|filter| filter.entities = Some(vec![key.of_text("x")])));
    }

    #[test]
    fn a_read_is_found_by_its_view_and_its_entities() {
        let key = TagKey::new(2, [7; 32]);
        let entity = |id: i64| key.of_entity(&BTreeMap::from([("customer_id", id.into())]));
        let event = AuditEvent::FeaturesRead {
            feature_view: "customers".into(),
            model: Some("m".parse().unwrap()),
            calls: 1,
            rows: 2,
            entities: vec![entity(1), entity(2)],
            unlisted: 0,
        };
        let actor = Actor::of(&Principal::Local, None);
        let record = AuditRecord { v: VERSION, seq: 5, ts: Timestamp(1000), actor, event };
        let all = AuditFilterArgs::default().resolve(&GlobalArgs::default()).unwrap();
        let of = |feature_view: &str, entities: Vec<Tag>| {
            let filter =
                RecordFilter { feature_view: Some(feature_view.into()), entities: Some(entities), ..all.clone() };
            filter.matches(&record)
        };
        assert!(of("customers", vec![entity(9), entity(2)]));
        assert!(!of("customers", vec![entity(3)]) && !of("products", vec![entity(1)]));
        assert!(RecordFilter { model: "m".parse().ok(), ..all.clone() }.matches(&record));
    }
}
