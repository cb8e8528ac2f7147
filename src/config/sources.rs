//! The sources of the configuration: defaults, then the settings of a membership, then signed settings, then the file,
//! then the environment, then the command line.
//!
//! Each source is checked by itself, so that its mistakes carry its name. Then the values of its sections replace those
//! of the sources before, key by key. The sections of a source with a wrong value are left out.

mod platform_metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ledge_base::toml_check::{self, CheckedToml, ConfigMistake, TomlEntryPlace, ValueProblem};
use ledge_egress::EgressContent;
use ledge_features::registry::Registry;
use ledge_isolation::SPAWNER_VARIABLE;
use ledge_listener::LISTENERS_VARIABLE;
use ledge_membership::folder::SETTINGS_FILE;
use ledge_updates::configuration;
use toml::de::DeValue;

use self::platform_metrics::MetricsListener;
pub use self::platform_metrics::PlatformMetrics;
use super::bindings::{self, BindingFindings};
use super::{Config, PACKAGED_FILE, PACKAGED_ROOT};

/// The largest configuration file, in bytes. A file with every key has under 10,000.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Variables that start with `LEDGE_` and set no key, or prefixes of them. They choose the root and the file, name the
/// file of the API key of the command line, pass sockets to the next program, belong to tests, or are set by Kubernetes
/// in every pod next to a service named `ledge`.
const OTHER_VARIABLES: [&str; 9] = [
    "LEDGE_ROOT",
    "LEDGE_CONFIG",
    "LEDGE_KEY_FILE",
    LISTENERS_VARIABLE,
    SPAWNER_VARIABLE,
    "LEDGE_TEST_",
    "LEDGE_SERVICE_",
    "LEDGE_PORT_",
    "LEDGE_PORT",
];

/// The sources that the configuration is read from.
#[derive(Debug, Clone, Default)]
pub struct ConfigSources {
    /// The folder that relative paths are relative to. `None` with a `file` is the folder of that file; without one, it
    /// is the layout of the installed package.
    pub root: Option<PathBuf>,
    /// The configuration file, which must exist. `None` is `ledge.toml` in the root, if there is one.
    pub file: Option<PathBuf>,
    /// Environment variables. Only those that start with `LEDGE_` are read.
    pub environment: Vec<(String, String)>,
    /// `SECTION.KEY=VALUE`, in the order of the command line. The last one wins.
    pub set: Vec<String>,
}

impl Config {
    /// Reads the configuration, or reports the mistakes in all its sources.
    pub fn load(sources: &ConfigSources) -> Result<Self, Vec<ConfigMistake>> {
        sources.load().map(|loaded| loaded.config)
    }
}

/// A configuration, with the origin of each value.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The configuration. Its paths no longer depend on the root.
    pub config: Config,
    positions: ValueOrigins,
    /// The mistakes for which the signed settings of this box are ignored; empty when they are in effect.
    pub rejected_signed: Vec<ConfigMistake>,
    /// The keys of the membership's settings that have another value, because the box's own settings count.
    replaced: Vec<String>,
    /// The listener for the Prometheus of the platform; `None` on a box without one.
    pub metrics: Option<PlatformMetrics>,
}

/// The place where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueOrigin {
    /// A file name, an environment variable, a command line option.
    pub source: String,
    /// The line in the file, from 1.
    pub line: Option<usize>,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// The origin of each entry that was set, by its key, and whether it is a section.
type ValueOrigins = BTreeMap<String, (ValueOrigin, bool)>;

/// The result of reading every source.
struct SourcesReading {
    /// The configuration, without the values that have a mistake; `None` where a source could not be read to its end.
    /// It is valid if there is no mistake.
    loaded: Option<LoadedConfig>,
    mistakes: Vec<ConfigMistake>,
    /// The sections with a value that could not be read.
    unread: BTreeSet<String>,
}

impl SourcesReading {
    fn valid(self) -> Result<LoadedConfig, Vec<ConfigMistake>> {
        self.loaded.filter(|_| self.mistakes.is_empty()).ok_or(self.mistakes)
    }

    /// The configuration, if `section` has no mistake.
    fn with_section(&self, section: &str) -> Option<&Config> {
        let is_wrong = self.mistakes.iter().any(|mistake| toml_check::section(&mistake.key) == section);
        let loaded = self.loaded.as_ref().filter(|_| !is_wrong);
        loaded.map(|loaded| &loaded.config)
    }

    /// The feature views of the configuration's folder, or the mistakes in them; `None` where the folder is not known.
    fn views(&self) -> Option<Result<Registry, Vec<ConfigMistake>>> {
        self.with_section("features").map(|config| Registry::load(&config.features.views, &config.features.path))
    }
}

/// The result of checking a configuration without running anything.
#[derive(Debug, Default)]
pub struct ConfigCheckResult {
    pub mistakes: Vec<ConfigMistake>,
    /// Settings that have no effect, or name a model that does not exist yet. The daemon starts with them.
    pub warnings: Vec<ConfigMistake>,
}

impl ConfigSources {
    /// Reads and merges every source, or reports the mistakes in all of them. Signed settings with a mistake are
    /// ignored as a whole and reported in [`LoadedConfig::rejected_signed`]: no release prevents a box from starting.
    pub fn load(&self) -> Result<LoadedConfig, Vec<ConfigMistake>> {
        self.read().valid()
    }

    /// The configuration for a command that needs only `section`. Mistakes in other sections prevent the daemon from
    /// starting, and must not prevent this command.
    pub fn load_section(&self, section: &str) -> Result<Config, Vec<ConfigMistake>> {
        let reading = self.read();
        reading.with_section(section).cloned().ok_or(reading.mistakes)
    }

    /// The configuration and the feature views of its folder, or the mistakes in both.
    pub fn load_with_views(&self) -> Result<(LoadedConfig, Registry), Vec<ConfigMistake>> {
        let reading = self.read();
        match (reading.views(), reading.valid()) {
            (Some(Ok(registry)), Ok(loaded)) => Ok((loaded, registry)),
            (views, read) => Err([read.err(), views.and_then(Result::err)].into_iter().flatten().flatten().collect()),
        }
    }

    /// The mistakes in the configuration, in the feature views, and in bindings compared with the models on the disk.
    pub fn check(&self) -> ConfigCheckResult {
        let reading = self.read();
        let is_valid = reading.mistakes.is_empty();
        let of_views = reading.views().and_then(Result::err).into_iter().flatten();
        let mut result = ConfigCheckResult { mistakes: reading.mistakes, warnings: Vec::new() };
        result.mistakes.extend(of_views);
        let Some(loaded) = reading.loaded.filter(|_| reading.unread.is_empty()) else { return result };
        if is_valid {
            result.warnings.extend(loaded.warnings());
            result.mistakes.extend(loaded.lets_nobody_in());
        }

        let BindingFindings { problems, notes } = bindings::findings(&loaded.config);
        for (findings, list) in [(problems, &mut result.mistakes), (notes, &mut result.warnings)] {
            list.extend(findings.iter().map(|problem| located(&loaded.positions, problem)));
        }
        result.mistakes.extend(loaded.rejected_signed);
        result
    }

    fn read(&self) -> SourcesReading {
        let (membership, own) = self.own();
        let membership = membership.as_ref();
        let Some(loaded) = own.loaded.as_ref().filter(|_| own.mistakes.is_empty()) else { return own };
        let signed = configuration::active(&loaded.config.updates.path);
        if signed.is_empty() {
            return own;
        }
        let loaded = match self.merge(membership, &signed).valid() {
            Ok(with_signed) => with_signed,
            Err(rejected_signed) => LoadedConfig { rejected_signed, ..loaded.clone() },
        };
        SourcesReading { loaded: Some(loaded), ..own }
    }

    /// Reports the mistakes of a release of signed settings on this box: together with the other live signed settings,
    /// under the sources of the box itself.
    pub fn try_signed(&self, release: &Path) -> Result<(), Vec<ConfigMistake>> {
        let (membership, own) = self.own();
        let own = own.valid()?;
        let mut signed = configuration::active(&own.config.updates.path);
        // Replaces the live version of the same name: `.../NAME/VERSION/settings.toml`.
        signed.retain(|file| file.parent().and_then(Path::parent) != release.parent());
        signed.push(release.join(configuration::SETTINGS_FILE));
        self.merge(membership.as_ref(), &signed).valid().map(drop)
    }

    /// Everything but signed settings, and the settings of a membership if there is one. The other sources say where they
    /// are.
    fn own(&self) -> (Option<MembershipSource>, SourcesReading) {
        let alone = self.merge(None, &[]);
        let Some(LoadedConfig { config, positions, .. }) = &alone.loaded else { return (None, alone) };
        let file = config.membership.path.join(SETTINGS_FILE);
        if !file.is_file() {
            return (None, alone);
        }
        let is_replaced = |(_, address): &&(&str, &str)| positions.contains_key(*address);
        let source = MembershipSource { file, replaced: CONNECTIONS.iter().filter(is_replaced).copied().collect() };
        let own = self.merge(Some(&source), &[]);
        (Some(source), own)
    }

    /// Merges the defaults, the settings of a membership, these files of signed settings, and every other source of the
    /// box, each over those before.
    fn merge(&self, membership: Option<&MembershipSource>, signed: &[PathBuf]) -> SourcesReading {
        let (root, defaults) = self.layout();
        let mut merged = MergedSources::new(&defaults);
        if let Some(root) = &self.root
            && !root.is_dir()
        {
            merged.mistakes.push(ConfigMistake::new(
                "--root",
                "",
                format!("the folder {} does not exist", root.display()),
            ));
        }

        let needs = membership.map(|source| read_membership(source, &mut merged)).unwrap_or_default();
        for file in signed {
            read_signed(file, &mut merged);
        }
        let of_platform = merged.values();
        self.read_file(&root, &mut merged);
        self.read_environment(&mut merged);
        for text in &self.set {
            read_set(text, &mut merged);
        }
        let of_box = merged.values();
        // Destinations are added to those of the box.
        let is_replaced =
            |(key, value): &(String, toml::Value)| key != "egress.allow" && of_box.get(key) != Some(value);
        let replaced = of_platform.into_iter().filter(is_replaced).map(|(key, _)| key);
        let connections = membership.into_iter().flat_map(|source| &source.replaced);
        let replaced = replaced.chain(connections.map(|(_, address)| (*address).to_owned())).collect();
        merged.add_destinations(needs.destinations);
        let metrics = needs.metrics.map(|listener| listener.add_to(&mut merged.table, &mut merged.positions));
        merged.finish(&root, replaced, metrics)
    }

    fn layout(&self) -> (PathBuf, Config) {
        match (&self.root, &self.file) {
            (Some(root), _) => (root.clone(), Config::default()),
            (None, Some(file)) => (file.parent().map(Path::to_owned).unwrap_or_default(), Config::default()),
            (None, None) => (PACKAGED_ROOT.into(), Config::packaged()),
        }
    }

    fn read_file(&self, root: &Path, merged: &mut MergedSources) {
        let path = match (&self.file, &self.root) {
            (Some(file), _) => file.clone(),
            (None, Some(_)) => root.join("ledge.toml"),
            (None, None) => PACKAGED_FILE.into(),
        };
        let source = path.display().to_string();
        match read_text(&path) {
            Ok(text) => {
                merged.add(toml_check::check(&source, &text), |line| ValueOrigin { source: source.clone(), line });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.file.is_none() => {}
            Err(error) => merged.add_unreadable(source, &error),
        }
    }

    fn read_environment(&self, merged: &mut MergedSources) {
        let mut variables: Vec<_> = self.environment.iter().collect();
        variables.sort();
        for (name, value) in variables {
            let Some(rest) = name.strip_prefix("LEDGE_") else { continue };
            if OTHER_VARIABLES.iter().any(|known| name == known || (known.ends_with('_') && name.starts_with(known))) {
                continue;
            }
            match key_of_variable(&rest.to_ascii_lowercase(), &merged.table) {
                Some(key) => read_value(name, &key, value, merged),
                None => merged.mistakes.push(ConfigMistake::new(name, "", "is not a key: expected LEDGE_SECTION_KEY")),
            }
        }
    }
}

/// The settings of a membership.
struct MembershipSource {
    file: PathBuf,
    /// The connections that the box has elsewhere: none of their settings is taken.
    replaced: Vec<(&'static str, &'static str)>,
}

/// The sections that a platform sets for a connection to itself, and their addresses.
const CONNECTIONS: [(&str, &str); 2] = [("mqtt", "mqtt.broker"), ("audit.sync", "audit.sync.url")];

/// The settings of a membership that are added after all other sources.
#[derive(Default)]
struct MembershipNeeds {
    /// Entries of `[[egress.allow]]`.
    destinations: Vec<toml::Value>,
    metrics: Option<MetricsListener>,
}

/// Reads the settings of a membership, and returns those that are added after all other sources.
fn read_membership(
    MembershipSource { file, replaced }: &MembershipSource,
    merged: &mut MergedSources,
) -> MembershipNeeds {
    let source = file.display().to_string();
    match read_text(file) {
        Ok(text) => {
            let mut checked = toml_check::check::<Config>(&source, &text);
            for (section, _) in replaced {
                let (outer, name) = section.split_once('.').unwrap_or(("", section));
                let table = if outer.is_empty() {
                    Some(&mut checked.table)
                } else {
                    checked.table.get_mut(outer).and_then(toml::Value::as_table_mut)
                };
                table.and_then(|table| table.remove(name));
                let within = format!("{section}.");
                checked.places.retain(|key, _| key != section && !key.starts_with(&within));
            }
            let allowed = checked.table.get("egress").and_then(|egress| egress.get("allow")?.as_array()).cloned();
            let metrics = MetricsListener::take(&source, &mut checked);
            merged.add(checked, |line| ValueOrigin { source: source.clone(), line });
            MembershipNeeds { destinations: allowed.unwrap_or_default(), metrics }
        }
        Err(error) => {
            merged.add_unreadable(source, &error);
            MembershipNeeds::default()
        }
    }
}

/// Lets the answers to questions go where requests for the certificate of this box go: to its platform.
fn allow_diagnoses(destination: &mut toml::Value) {
    let send = destination.get_mut("send").and_then(toml::Value::as_array_mut);
    let is = |content: EgressContent| move |word: &toml::Value| word.as_str() == Some(content.name());
    if let Some(send) = send.filter(|send| send.iter().any(is(EgressContent::CertificateRequest)))
        && !send.iter().any(is(EgressContent::Diagnosis))
    {
        send.push(EgressContent::Diagnosis.name().into());
    }
}

fn read_signed(path: &Path, merged: &mut MergedSources) {
    let source = path.display().to_string();
    match read_text(path) {
        Ok(text) => {
            let mut checked = toml_check::check::<Config>(&source, &text);
            let values =
                checked.places.iter().filter(|(key, place)| !place.is_section && !configuration::is_settable(key));
            let forbidden = values.map(|(key, place)| {
                let problem = "can be set only by the owner of the box, not by a release";
                ConfigMistake { line: Some(place.line), ..ConfigMistake::new(&source, key, problem) }
            });
            checked.mistakes.extend(forbidden);
            merged.add(checked, |line| ValueOrigin { source: source.clone(), line });
        }
        Err(error) => merged.add_unreadable(source, &error),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8 text"))
    })
}

/// The key of a variable's name, also in a section within a section.
fn key_of_variable(name: &str, sections: &toml::Table) -> Option<String> {
    let Some((section, key, inner)) = split_section(name, sections) else {
        let (section, key) = name.split_once('_')?;
        return (is_key(section) && is_key(key)).then(|| format!("{section}.{key}"));
    };
    let within = if inner.contains_key(key) { None } else { split_section(key, inner) };
    match within {
        Some((within, key, _)) => is_key(key).then(|| format!("{section}.{within}.{key}")),
        None => is_key(key).then(|| format!("{section}.{key}")),
    }
}

/// Splits a name into its section and the rest. The longest of `sections` that matches wins: some contain a `_`.
fn split_section<'n, 's>(name: &'n str, sections: &'s toml::Table) -> Option<(&'n str, &'n str, &'s toml::Table)> {
    let mut splits = name.rmatch_indices('_').filter_map(|(at, _)| Some((name.get(..at)?, name.get(at + 1..)?)));
    splits.find_map(|(section, key)| Some((section, key, sections.get(section)?.as_table()?)))
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn read_set(text: &str, merged: &mut MergedSources) {
    match text.split_once('=').map(|(key, value)| (key.trim(), value)) {
        // A section that is an array, such as `camera`, is set as a whole.
        Some((key, value))
            if (key.contains('.') || value.trim_start().starts_with('[')) && key.split('.').all(is_key) =>
        {
            read_value(&format!("--set {key}"), key, value, merged);
        }
        _ => {
            let expected = "expected SECTION.KEY=VALUE, for example log.level=debug";
            let key = text.split('=').next().unwrap_or_default();
            merged.mistakes.push(ConfigMistake::new(format!("--set {key}"), "", expected));
        }
    }
}

/// Reads one value in TOML syntax. A value that is invalid as TOML and valid as a plain text is taken as that text, so
/// that `log.level=debug` needs no quotes within quotes.
fn read_value(source: &str, key: &str, value: &str, merged: &mut MergedSources) {
    let check = |value: &str| toml_check::check::<Config>(source, &format!("{key} = {value}"));
    // Parsed by itself first: a value with a line break could otherwise set other keys.
    let as_toml = DeValue::parse(value).map(|_| check(value));
    let as_text = || check(&toml::Value::String(value.to_owned()).to_string());
    let mut checked = match as_toml {
        Ok(checked) if checked.mistakes.is_empty() => checked,
        Ok(checked) => Some(as_text()).filter(|text| text.mistakes.is_empty()).unwrap_or(checked),
        Err(error) => {
            let mut checked = as_text();
            if !checked.mistakes.is_empty() && value.trim_start().starts_with(['"', '\'', '[', '{']) {
                checked.mistakes =
                    vec![ConfigMistake::new(source, key, format!("is not a TOML value: {}", error.message()))];
            }
            checked
        }
    };
    for mistake in &mut checked.mistakes {
        (mistake.line, mistake.column) = (None, None);
    }
    merged.add(checked, |_| ValueOrigin { source: source.to_owned(), line: None });
}

/// The merged values and mistakes of the sources read so far.
struct MergedSources {
    table: toml::Table,
    positions: ValueOrigins,
    mistakes: Vec<ConfigMistake>,
    unread: BTreeSet<String>,
    /// Set while every source was read to its end.
    is_whole: bool,
}

impl MergedSources {
    fn new(defaults: &Config) -> Self {
        // A Config is always a table; tests check that its types serialize. Here and in `finish` it goes through text:
        // reading and writing it as a `toml::Value` would compile every section once more.
        let table = toml::to_string(defaults).unwrap_or_default().parse().unwrap_or_default();
        Self { table, positions: ValueOrigins::new(), mistakes: Vec::new(), unread: BTreeSet::new(), is_whole: true }
    }

    fn add(&mut self, checked: CheckedToml<Config>, origin: impl Fn(Option<usize>) -> ValueOrigin) {
        overlay(&mut self.table, checked.table);
        // An array replaces the previous one as a whole.
        let replaced = |key: &String| key.split_once('[').is_some_and(|(array, _)| checked.places.contains_key(array));
        self.positions.retain(|key, _| !replaced(key));
        for (key, TomlEntryPlace { line, is_section }) in checked.places {
            let origin = origin(Some(line));
            // The position of a section is the line in a file; setting a single key of it does not change that.
            if !is_section || origin.line.is_some() || !self.positions.contains_key(&key) {
                self.positions.insert(key, (origin, is_section));
            }
        }
        self.is_whole &= checked.value.is_some();
        self.unread.extend(checked.unread);
        self.mistakes.extend(checked.mistakes);
    }

    /// Adds entries to `[[egress.allow]]` for hosts that have none: an array of a later source replaces the whole list,
    /// and a member still has to reach its platform. Where the owner allows questions, their answers may go there too.
    fn add_destinations(&mut self, destinations: Vec<toml::Value>) {
        let allows_questions = self.allows_questions();
        let egress = self.table.get_mut("egress").and_then(toml::Value::as_table_mut);
        let Some(allow) = egress.and_then(|egress| egress.get_mut("allow")?.as_array_mut()) else { return };
        for destination in destinations {
            let mut allowed = destination.clone();
            if allows_questions {
                allow_diagnoses(&mut allowed);
            }
            match allow.iter_mut().find(|known| known.get("host") == destination.get("host")) {
                // The entry of the owner is as the owner wants it.
                Some(known) if *known != destination => {}
                Some(known) => *known = allowed,
                None => allow.push(allowed),
            }
        }
    }

    /// True if the owner lets the platform ask something.
    fn allows_questions(&self) -> bool {
        let questions = self.table.get("membership").and_then(|section| section.get("questions")?.as_array());
        questions.is_some_and(|questions| !questions.is_empty())
    }

    fn add_unreadable(&mut self, source: String, error: &io::Error) {
        self.is_whole = false;
        self.mistakes.push(ConfigMistake::new(source, "", format!("cannot be read: {error}")));
    }

    /// The values that the sources set, by their keys, without those within arrays.
    fn values(&self) -> BTreeMap<String, toml::Value> {
        let value = |key: &str| {
            let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
            let table = section.split('.').try_fold(&self.table, |table, name| table.get(name)?.as_table())?;
            table.get(key).cloned()
        };
        let keys = self.positions.iter().filter(|(_, (_, is_section))| !is_section).map(|(key, _)| key);
        keys.filter_map(|key| Some((key.clone(), value(key)?))).collect()
    }

    fn finish(self, root: &Path, replaced: Vec<String>, metrics: Option<PlatformMetrics>) -> SourcesReading {
        let Self { table, positions, mut mistakes, unread, is_whole } = self;
        let whole = toml_check::check::<Config>("the configuration as a whole", &table.to_string());
        // Unknown keys of the sources are in it again.
        if mistakes.is_empty() {
            mistakes = whole.mistakes.into_iter().map(|mistake| ConfigMistake { line: None, ..mistake }).collect();
        }
        // Where a source was not read to its end, a problem may exist only for that.
        let loaded = whole.value.filter(|_| is_whole).map(|mut config| {
            config.resolve(root);
            mistakes.extend(config.problems(&unread).iter().map(|problem| located(&positions, problem)));
            LoadedConfig { config, positions, rejected_signed: Vec::new(), replaced, metrics }
        });
        SourcesReading { loaded, mistakes, unread }
    }
}

/// A problem as a mistake where its key was set. A key that is not set is reported at its array element, where it has
/// one; any other unset key has its default.
fn located(positions: &ValueOrigins, ValueProblem { key, message }: &ValueProblem) -> ConfigMistake {
    match toml_check::nearest(positions, key, key.find('[').unwrap_or(key.len())) {
        Some((ValueOrigin { source, line }, _)) => {
            ConfigMistake { line: *line, ..ConfigMistake::new(source, key, message) }
        }
        None => ConfigMistake::new("default", key, message),
    }
}

fn overlay(below: &mut toml::Table, above: toml::Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => overlay(below, above),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

impl LoadedConfig {
    /// Reports that the daemon does not start because no caller could get in. This is no mistake of the configuration
    /// itself, so that the commands that correct it can still read it.
    pub fn lets_nobody_in(&self) -> Option<ConfigMistake> {
        Some(located(&self.positions, &ValueProblem::new("http.listen", self.config.lets_nobody_in()?)))
    }

    /// Settings that have no effect here, or not the one that they name. Everything else works.
    pub fn warnings(&self) -> Vec<ConfigMistake> {
        let of_access = self.config.access.warnings().into_iter().map(|problem| problem.within("access"));
        let of_runtimes = self.config.runtimes.warnings().into_iter().map(|problem| problem.within("runtimes"));
        let warnings = of_access.chain(of_runtimes).chain(self.config.camera_warnings());
        let warnings = warnings.map(|problem| located(&self.positions, &problem));
        warnings.chain(self.replaced_settings()).collect()
    }

    /// The box's own settings that replace those of its platform.
    pub fn replaced_settings(&self) -> impl Iterator<Item = ConfigMistake> {
        let problem = |key| ValueProblem::new(key, "this setting of the box counts, and not the one of its platform");
        self.replaced.iter().map(move |key| located(&self.positions, &problem(key)))
    }

    /// The origin of each key that was set.
    pub fn origins(&self) -> BTreeMap<&str, &ValueOrigin> {
        let values = self.positions.iter().filter(|(_, (_, is_section))| !is_section);
        values.map(|(key, (origin, _))| (key.as_str(), origin)).collect()
    }

    /// The configuration as TOML, with a comment on the origin of each value that is not a default.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let (plain, origins) = (toml::to_string(&self.config)?, self.origins());
        let mut section = String::new();
        let mut elements: BTreeMap<&str, usize> = BTreeMap::new();
        let mut text = String::new();
        for line in plain.lines() {
            text.push_str(line);
            let key = if let Some(array) = line.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")) {
                let index = elements.entry(array).and_modify(|index| *index += 1).or_default();
                section = format!("{array}[{index}]");
                section.clone()
            } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                // Within an element of an array, its index belongs to the key.
                let of_element = |(array, index): (&&str, &usize)| {
                    Some(format!("{array}[{index}]{}", name.strip_prefix(array).filter(|rest| rest.starts_with('.'))?))
                };
                section = elements.iter().find_map(of_element).unwrap_or_else(|| name.to_owned());
                section.clone()
            } else if let Some((key, _)) = line.split_once(" = ") {
                format!("{section}.{key}")
            } else {
                String::new()
            };
            if let Some(origin) = origins.get(key.as_str()) {
                text.extend(["  # from ", &origin.to_string()]);
            }
            text.push('\n');
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
