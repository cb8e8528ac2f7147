//! `ledge keys`: API keys.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use ledge_base::clock;
use ledge_base::names::{FeatureName, KeyName, ModelName};
use ledge_base::token_bucket::Rate;
use ledge_identity::access::{Role, ViewScope};
use ledge_identity::api_key::ApiKey;
use ledge_identity::keys::{KeyRecord, KeyStore, NewKey};
use serde_json::{Value, json};

use super::features::show::columns;
use super::{Exit, Globals, Output};

/// The arguments of `ledge keys`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct KeysArgs {
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What to do with API keys.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key, and print it once: nobody can show it again.
    ///
    /// The server knows it within a second, without a restart. Give each caller a key of its own, so that it can be taken
    /// back alone.
    Create(CreateArgs),
    /// List the keys, revoked ones included; never the keys themselves.
    List,
    /// Take a key back, for good. Whoever holds it is refused within a second.
    Revoke {
        /// The name or the id of the key.
        #[arg(value_name = "NAME|ID")]
        key: String,
    },
}

/// The arguments of `ledge keys create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Who holds it: letters, digits, "." "_" and "-". It stands in the logs, and no other key ever gets it.
    #[arg(value_name = "NAME")]
    pub name: KeyName,
    /// What its holder may do: viewer, infer, feature-writer, operator, admin or auditor. Can be repeated.
    #[arg(long, value_name = "ROLE", required = true)]
    pub role: Vec<Role>,
    /// A model that it is for. Can be repeated. Without, it is for all models.
    #[arg(long, value_name = "NAME")]
    pub model: Vec<ModelName>,
    /// A feature view whose values it may read and push. Can be repeated; "*" is all of them.
    ///
    /// Without, it is for all feature views, or for none where --model is given: a model reads the features that its inputs
    /// are made of, whoever asks it.
    #[arg(long, value_name = "NAME", value_parser = feature_view)]
    pub feature_view: Vec<String>,
    /// When it ends: after a time, as 12h, 90d or 52w, at a moment, as 2027-01-01T00:00:00Z, or never.
    #[arg(long, value_name = "TIME", default_value = DEFAULT_LIFE)]
    pub expires: Expiry,
    /// The most requests a second, over time. 0 is no limit.
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = rate)]
    pub max_rate: Rate,
    /// The most requests at a time. 0 is no limit.
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub max_concurrent: u32,
    /// A file for the key, which must not be there yet and only its owner may read. Without, it is printed.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// So long a key lives of which nothing else is said: who holds one that is forgotten loses it.
const DEFAULT_LIFE: &str = "52w";

const EXAMPLES: &str = "\
Examples:
  ledge keys create till-7 --role infer --model minilm --expires 90d --output till-7.key
  ledge keys create grafana --role viewer
  ledge keys create erp --role feature-writer --feature-view customers --max-rate 50
  ledge keys list
  ledge keys revoke till-7

A holder sends it as Authorization: Bearer ledge_... or as X-API-Key.";

/// When a key ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// At this moment, in milliseconds since the Unix epoch.
    At(u64),
    /// So many milliseconds from now.
    After(u64),
    /// Not at all.
    Never,
}

impl Expiry {
    fn millis(self, now_ms: u64) -> Option<u64> {
        match self {
            Self::At(at) => Some(at),
            Self::After(after) => Some(now_ms.saturating_add(after)),
            Self::Never => None,
        }
    }
}

impl FromStr for Expiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let after = text.split_at_checked(text.len().saturating_sub(1)).and_then(|(number, unit)| {
            let unit: u64 = match unit {
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                "w" => 7 * 86_400_000,
                _ => return None,
            };
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse::<u64>().ok().filter(|number| is_number && *number > 0)?.checked_mul(unit)
        });
        let at = || u64::try_from(clock::parse_micros(text)? / 1000).ok().map(Self::At);
        let expected =
            || "expected a time as 30m, 12h, 90d or 52w, a moment as 2027-01-01T00:00:00Z, or never".to_owned();
        after.map(Self::After).or_else(at).ok_or_else(expected)
    }
}

fn feature_view(text: &str) -> Result<String, String> {
    if text != "*" {
        text.parse::<FeatureName>().map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}

fn rate(text: &str) -> Result<Rate, String> {
    let rate = text.parse().ok().and_then(Rate::new);
    rate.ok_or_else(|| "expected requests per second, from 0.001 to 1000000, or 0 for no limit".to_owned())
}

/// Runs the verb.
pub fn run(globals: &Globals, args: &KeysArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let store = KeyStore::new(&globals.load_section("state")?.state.path);
    let now_ms = clock::FLOOR.plausible_millis(clock::unix_millis());
    match &args.command {
        KeysCommand::Create(new) => create(&store, new, now_ms, args.json, out)?,
        KeysCommand::List if args.json => {
            let keys: Vec<_> = store.list()?.iter().map(|key| document(key, now_ms)).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&keys)?)?;
        }
        KeysCommand::List => list(&store.list()?, now_ms, out)?,
        KeysCommand::Revoke { key } => {
            let key = store.revoke(key, now_ms)?;
            if args.json {
                writeln!(out, "{}", document(&key, now_ms))?;
            } else {
                writeln!(out, "The key '{}' ({}) is revoked.", key.name, key.id)?;
            }
        }
    }
    Ok(Exit::Success)
}

fn create(store: &KeyStore, args: &CreateArgs, now_ms: u64, is_json: bool, out: &mut Output) -> anyhow::Result<()> {
    let expires_ms = args.expires.millis(now_ms);
    if expires_ms.is_some_and(|expires| expires <= now_ms) {
        anyhow::bail!("--expires is in the past: such a key would let nobody in");
    }
    let scope = (!args.feature_view.is_empty())
        .then(|| serde_json::from_value::<ViewScope>(json!(args.feature_view)))
        .transpose();
    let new = NewKey {
        name: args.name.clone(),
        roles: args.role.clone(),
        models: (!args.model.is_empty()).then(|| args.model.clone()),
        feature_views: scope.context("--feature-view")?,
        expires_ms,
        max_rate: args.max_rate,
        max_concurrent: args.max_concurrent,
    };
    // Before the store changes: what cannot be written here makes no key.
    let mut file = args.output.as_deref().map(Target::create).transpose()?;
    let created = store.create(&new, now_ms);
    if created.is_err() {
        file.iter().for_each(Target::remove);
    }
    let (key, record) = created?;
    if let Err(error) = hand_out(&key, &record, now_ms, is_json, file.as_mut(), out) {
        // Whoever was to have it has not all of it, and nobody can show it again.
        let record = store.revoke(&record.id.to_string(), now_ms).with_context(|| {
            format!("the key '{}' could not be written ({error:#}) and not be revoked: revoke it", record.name)
        })?;
        file.iter().for_each(Target::remove);
        anyhow::bail!(
            "the key '{}' could not be written, so it is revoked ({error:#}): take another name",
            record.name
        );
    }
    let until =
        record.expires_ms.map_or_else(|| "never expires".to_owned(), |at| format!("expires {}", clock::rfc3339(at)));
    let place = args.output.as_ref().map_or_else(
        || "It is shown this once: keep it where secrets are kept.".to_owned(),
        |path| format!("It is in {} and nowhere else.", path.display()),
    );
    let (roles, models, views) = (roles(&record), models(&record), feature_views(&record));
    let (name, id) = (&record.name, record.id);
    let told = format!("The key '{name}' ({id}) is for {roles} with {models} and {views}, and {until}. {place}");
    if !is_json {
        let _ = writeln!(std::io::stderr(), "{told}");
    }
    if store.is_half_full() {
        let _ = writeln!(
            std::io::stderr(),
            "The store of API keys is more than half full: keys that are revoked stay in it."
        );
    }
    Ok(())
}

/// Writes the key to where its holder takes it from: alone, so that it can be sent to a file, or with what it is as JSON.
fn hand_out(
    key: &ApiKey,
    record: &KeyRecord,
    now_ms: u64,
    is_json: bool,
    file: Option<&mut Target>,
    out: &mut Output,
) -> anyhow::Result<()> {
    let is_in_file = file.is_some();
    if let Some(file) = file {
        file.write(&key.reveal())?;
    }
    if is_json {
        let mut told = document(record, now_ms);
        if let Some(told) = told.as_object_mut().filter(|_| !is_in_file) {
            told.insert("key".to_owned(), key.reveal().into());
        }
        writeln!(out, "{told}")?;
    } else if !is_in_file {
        writeln!(out, "{}", key.reveal())?;
    }
    Ok(out.flush()?)
}

/// The file that a key goes into.
struct Target {
    path: PathBuf,
    file: File,
}

impl Target {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("{} cannot be made for the key", path.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn write(&mut self, key: &str) -> anyhow::Result<()> {
        let written = writeln!(self.file, "{key}").and_then(|()| self.file.sync_all());
        written.with_context(|| format!("{} cannot be written", self.path.display()))
    }

    /// Leaves nothing behind of a key that is none.
    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn list(keys: &[KeyRecord], now_ms: u64, out: &mut Output) -> anyhow::Result<()> {
    if keys.is_empty() {
        writeln!(out, "There are no API keys. `ledge keys create NAME --role infer` makes one.")?;
        return Ok(());
    }
    let head = ["NAME", "ID", "STATE", "ROLES", "MODELS", "FEATURE VIEWS", "LIMITS", "CREATED", "EXPIRES"]
        .map(str::to_owned)
        .to_vec();
    let mut rows = vec![head];
    for key in keys {
        let expires = key.expires_ms.map_or_else(|| "never".to_owned(), clock::rfc3339);
        rows.push(vec![
            key.name.to_string(),
            key.id.to_string(),
            state(key, now_ms).to_owned(),
            roles(key),
            models(key),
            feature_views(key),
            limits(key),
            clock::rfc3339(key.created_ms),
            expires,
        ]);
    }
    Ok(columns(&rows, out)?)
}

fn roles(key: &KeyRecord) -> String {
    key.roles.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(",")
}

fn models(key: &KeyRecord) -> String {
    let listed = |models: &Vec<ModelName>| models.iter().map(ModelName::as_str).collect::<Vec<_>>().join(",");
    key.models.as_ref().map_or_else(|| "all models".to_owned(), listed)
}

fn feature_views(key: &KeyRecord) -> String {
    match key.access().feature_views().views() {
        None => "all feature views".to_owned(),
        Some([]) => "no feature view".to_owned(),
        Some(views) => views.iter().map(FeatureName::as_str).collect::<Vec<_>>().join(","),
    }
}

fn limits(key: &KeyRecord) -> String {
    let rate = key.max_rate.is_set().then(|| format!("{}/s", key.max_rate));
    let most = (key.max_concurrent > 0).then(|| format!("{} at a time", key.max_concurrent));
    let limits: Vec<_> = rate.into_iter().chain(most).collect();
    if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
}

fn state(key: &KeyRecord, now_ms: u64) -> &'static str {
    match key {
        KeyRecord { revoked_ms: Some(_), .. } => "revoked",
        KeyRecord { expires_ms: Some(expires), .. } if *expires <= now_ms => "expired",
        _ => "valid",
    }
}

fn document(key: &KeyRecord, now_ms: u64) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "state": state(key, now_ms),
        "roles": key.roles,
        "models": key.models,
        "feature_views": key.access().feature_views(),
        "created": clock::rfc3339(key.created_ms),
        "expires": key.expires_ms.map(clock::rfc3339),
        "revoked": key.revoked_ms.map(clock::rfc3339),
        "max_rate": key.max_rate,
        "max_concurrent": key.max_concurrent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_a_time_from_now_or_a_moment() {
        let read = |text: &str| text.parse::<Expiry>().ok()?.millis(1000);
        assert_eq!(DEFAULT_LIFE.parse(), Ok(Expiry::After(364 * 86_400_000)));
        assert_eq!("never".parse::<Expiry>().map(|never| never.millis(1000)), Ok(None));
        assert_eq!(read("90d"), Some(90 * 86_400_000 + 1000));
        assert_eq!(read("2w"), read("14d"));
        assert_eq!(read("1970-01-01T00:00:07Z"), Some(7000));
        for bad in ["", "d", "0d", "-1d", "+1d", "1.5d", "1y", "tomorrow", "99999999999999999999d", "ü"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
