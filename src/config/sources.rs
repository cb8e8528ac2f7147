//! Where the configuration comes from: defaults, then signed settings, then the file, then the environment, then the
//! command line.
//!
//! Each source is checked by itself, so that its mistakes carry its name; then what is right is laid over what came
//! before, key by key.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ledge_base::toml_check::{self, Checked, EntryPlace, Misread, Mistake};
use ledge_features::config::FeaturesConfig;
use ledge_features::registry::Registry;
use ledge_http::LISTENERS_VARIABLE;
use ledge_updates::configuration;
use toml::de::DeValue;

use super::{BindingFindings, Config, PACKAGED_FILE, PACKAGED_ROOT};

/// The largest configuration file, in bytes. The one that names every key has under 10,000.
const MAX_FILE: u64 = 1 << 20;

/// Variables that start like ours and are none: they choose the root and the file, name the file of the key that the command
/// line asks with, and the sockets of the program before this one, belong to tests, or are what Kubernetes sets in every pod beside a service named `ledge`.
const NOT_KEYS: [&str; 8] = [
    "LEDGE_ROOT",
    "LEDGE_CONFIG",
    "LEDGE_KEY_FILE",
    LISTENERS_VARIABLE,
    "LEDGE_TEST_",
    "LEDGE_SERVICE_",
    "LEDGE_PORT_",
    "LEDGE_PORT",
];

/// What the configuration is read from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The folder that relative paths are relative to. `None` with a `file` is the folder of that file; without one, it is
    /// the layout of the installed package.
    pub root: Option<PathBuf>,
    /// The configuration file, which must exist. `None` is `ledge.toml` in the root, if there is one.
    pub file: Option<PathBuf>,
    /// Environment variables. Only those that start with `LEDGE_` are looked at.
    pub environment: Vec<(String, String)>,
    /// `SECTION.KEY=VALUE`, in the order of the command line. The last one wins.
    pub set: Vec<String>,
}

/// A valid configuration, and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration. Its paths are relative to the root no more.
    pub config: Config,
    /// Where each key that was set was set.
    pub origins: BTreeMap<String, Origin>,
    spots: Spots,
    /// Why the signed settings of this box are left out; none when they are not.
    pub left_out: Vec<Mistake>,
}

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// A file name, an environment variable, a command line option.
    pub source: String,
    /// The line in the file, from 1.
    pub line: Option<usize>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// Where an entry of the configuration stands.
#[derive(Debug, Clone)]
struct Spot {
    origin: Origin,
    /// Its key there: elements of an array that are left out count.
    key: String,
    is_section: bool,
}

/// The spot of each entry that was set, by its key.
type Spots = BTreeMap<String, Spot>;

/// Why there is no configuration.
#[derive(Debug)]
struct Unloaded {
    mistakes: Vec<Mistake>,
    /// The configuration with these mistakes; `None` where a source could not be read to its end.
    rest: Option<Box<Rest>>,
}

/// A configuration with mistakes: to find others with, and for nothing else.
#[derive(Debug)]
struct Rest {
    config: Config,
    spots: Spots,
    misread: Misread,
}

/// All that can be said of a configuration without running anything.
#[derive(Debug, Default)]
pub struct Verdict {
    pub mistakes: Vec<Mistake>,
    /// Settings that are of no use, or whose model is not there yet. Nothing else fails for them.
    pub warnings: Vec<Mistake>,
}

impl Sources {
    /// Reads and merges every source, or reports every mistake in all of them. Signed settings that do not fit are left out
    /// as a whole and told in [`Loaded::left_out`]: no release keeps a box from starting.
    pub fn load(&self) -> Result<Loaded, Vec<Mistake>> {
        self.load_own().map_err(|unloaded| unloaded.mistakes)
    }

    /// The configuration for a verb that needs `section` alone: mistakes elsewhere, which keep the daemon from starting, must
    /// not keep people from what they do meanwhile.
    pub fn load_section(&self, section: &str) -> Result<Config, Vec<Mistake>> {
        match self.load_own() {
            Ok(loaded) => Ok(loaded.config),
            Err(Unloaded { rest: Some(rest), .. }) if !rest.misread.holds(section) => Ok(rest.config),
            Err(Unloaded { mistakes, .. }) => Err(mistakes),
        }
    }

    /// The same with the feature views that the configuration leads to, and every mistake in both.
    pub fn load_with_views(&self) -> Result<(Loaded, Registry), Vec<Mistake>> {
        let registry = |features: &FeaturesConfig| Registry::load(&features.views, &features.path);
        match self.load_own() {
            Ok(loaded) => registry(&loaded.config.features).map(|registry| (loaded, registry)),
            Err(Unloaded { mut mistakes, rest }) => {
                let rest = rest.filter(|rest| !rest.misread.holds("features"));
                mistakes.extend(rest.and_then(|rest| registry(&rest.config.features).err()).into_iter().flatten());
                Err(mistakes)
            }
        }
    }

    /// Everything that is wrong with the configuration, with the feature views, and with bindings to models as they lie on
    /// the disk.
    pub fn check(&self) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.mistakes.extend(self.load_with_views().err().into_iter().flatten());
        let (config, spots, misread) = match self.load_own() {
            Ok(loaded) => {
                verdict.warnings.extend(loaded.warnings());
                verdict.mistakes.extend(loaded.lets_nobody_in());
                let Loaded { config, spots, left_out, .. } = loaded;
                verdict.mistakes.extend(left_out);
                (config, spots, Misread::default())
            }
            Err(Unloaded { rest: Some(rest), .. }) => (rest.config, rest.spots, rest.misread),
            Err(Unloaded { rest: None, .. }) => return verdict,
        };
        let BindingFindings { problems, notes } = config.binding_findings();
        for (found, told) in [(problems, &mut verdict.mistakes), (notes, &mut verdict.warnings)] {
            let found = found.into_iter().map(|(key, problem)| blamed(&spots, &key, problem));
            told.extend(found.filter(|mistake| !misread.explains(&mistake.key, &mistake.message)));
        }
        verdict
    }

    fn load_own(&self) -> Result<Loaded, Unloaded> {
        let own = self.merge(&[])?;
        let signed = configuration::active(&own.config.updates.path);
        if signed.is_empty() {
            return Ok(own);
        }
        Ok(self.merge(&signed).unwrap_or_else(|unloaded| Loaded { left_out: unloaded.mistakes, ..own }))
    }

    /// What is wrong with a release of signed settings on this box: with what else is live of them, under the sources of the
    /// box itself.
    pub fn try_signed(&self, release: &Path) -> Result<(), Vec<Mistake>> {
        let own = self.merge(&[]).map_err(|unloaded| unloaded.mistakes)?;
        let mut signed = configuration::active(&own.config.updates.path);
        // In the place of the version that is live: `.../NAME/VERSION/settings.toml`.
        signed.retain(|file| file.parent().and_then(Path::parent) != release.parent());
        signed.push(release.join(configuration::SETTINGS_FILE));
        self.merge(&signed).map(drop).map_err(|unloaded| unloaded.mistakes)
    }

    /// The defaults, these files of signed settings, and every source of the box, each over those before.
    fn merge(&self, signed: &[PathBuf]) -> Result<Loaded, Unloaded> {
        let (root, defaults) = self.layout();
        let mut merged = Merged::new(&defaults);
        if let Some(root) = &self.root
            && !root.is_dir()
        {
            merged.mistakes.push(Mistake::new("--root", "", format!("the folder {} does not exist", root.display())));
        }
        for file in signed {
            read_signed(file, &mut merged);
        }
        self.read_file(&root, &mut merged);
        self.read_environment(&mut merged);
        for text in &self.set {
            read_set(text, &mut merged);
        }
        merged.finish(&root)
    }

    fn layout(&self) -> (PathBuf, Config) {
        match (&self.root, &self.file) {
            (Some(root), _) => (root.clone(), Config::default()),
            (None, Some(file)) => (file.parent().map(Path::to_owned).unwrap_or_default(), Config::default()),
            (None, None) => (PACKAGED_ROOT.into(), Config::packaged()),
        }
    }

    fn read_file(&self, root: &Path, merged: &mut Merged) {
        let path = match (&self.file, &self.root) {
            (Some(file), _) => file.clone(),
            (None, Some(_)) => root.join("ledge.toml"),
            (None, None) => PACKAGED_FILE.into(),
        };
        let source = path.display().to_string();
        match read_text(&path) {
            Ok(text) => merged.add(toml_check::check(&source, &text), |line| Origin { source: source.clone(), line }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.file.is_none() => {}
            Err(error) => merged.unread(source, &error),
        }
    }

    fn read_environment(&self, merged: &mut Merged) {
        let mut variables: Vec<_> = self.environment.iter().collect();
        variables.sort();
        for (name, value) in variables {
            let Some(rest) = name.strip_prefix("LEDGE_") else { continue };
            if NOT_KEYS.iter().any(|known| name == known || (known.ends_with('_') && name.starts_with(known))) {
                continue;
            }
            match dotted(&rest.to_ascii_lowercase(), &merged.table) {
                Some(key) => read_value(name, &key, value, merged),
                None => merged.mistakes.push(Mistake::new(name, "", "names no key: expected LEDGE_SECTION_KEY")),
            }
        }
    }
}

fn read_signed(path: &Path, merged: &mut Merged) {
    let source = path.display().to_string();
    match read_text(path) {
        Ok(text) => {
            let mut checked = toml_check::check::<Config>(&source, &text);
            let values = checked.places.iter().filter(|(_, place)| !place.is_section);
            let beyond = values.filter(|(key, _)| !configuration::is_settable(key));
            let mistake = |(_, place): (&String, &EntryPlace)| {
                let problem = "is for the owner of the box alone: no release may set it";
                Mistake { line: Some(place.line), ..Mistake::new(&source, &place.key, problem) }
            };
            let mistakes: Vec<Mistake> = beyond.map(mistake).collect();
            checked.mistakes.extend(mistakes);
            merged.add(checked, |line| Origin { source: source.clone(), line });
        }
        Err(error) => merged.unread(source, &error),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("is larger than {MAX_FILE} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8 text"))
    })
}

/// The key that a variable's name means, a section within a section included.
fn dotted(name: &str, sections: &toml::Table) -> Option<String> {
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

/// A name without its section, the longest of `sections` that fits: some have a `_` of their own.
fn split_section<'n, 's>(name: &'n str, sections: &'s toml::Table) -> Option<(&'n str, &'n str, &'s toml::Table)> {
    let mut splits = name.rmatch_indices('_').filter_map(|(at, _)| Some((name.get(..at)?, name.get(at + 1..)?)));
    splits.find_map(|(section, key)| Some((section, key, sections.get(section)?.as_table()?)))
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn read_set(text: &str, merged: &mut Merged) {
    match text.split_once('=').map(|(key, value)| (key.trim(), value)) {
        Some((key, value)) if key.contains('.') && key.split('.').all(is_key) => {
            read_value(&format!("--set {key}"), key, value, merged);
        }
        _ => {
            let expected = "expected SECTION.KEY=VALUE, for example log.level=debug";
            merged.mistakes.push(Mistake::new(format!("--set {text}"), "", expected));
        }
    }
}

/// Reads one value in TOML syntax. What does not fit as TOML and does as a plain text is that text, so that
/// `log.level=debug` needs no quotes within quotes.
fn read_value(source: &str, key: &str, value: &str, merged: &mut Merged) {
    let check = |value: &str| toml_check::check::<Config>(source, &format!("{key} = {value}"));
    // By itself first: a value with a line break could set other keys as well.
    let as_toml = DeValue::parse(value).map(|_| check(value));
    let as_text = || check(&toml::Value::String(value.to_owned()).to_string());
    let mut checked = match as_toml {
        Ok(checked) if checked.mistakes.is_empty() => checked,
        Ok(checked) => Some(as_text()).filter(|text| text.mistakes.is_empty()).unwrap_or(checked),
        Err(error) => {
            let mut checked = as_text();
            if !checked.mistakes.is_empty() && value.trim_start().starts_with(['"', '\'', '[', '{']) {
                checked.mistakes = vec![Mistake::new(source, key, format!("is no TOML value: {}", error.message()))];
            }
            checked
        }
    };
    for mistake in &mut checked.mistakes {
        (mistake.line, mistake.column) = (None, None);
    }
    merged.add(checked, |_| Origin { source: source.to_owned(), line: None });
}

/// What the sources read so far come to.
struct Merged {
    table: toml::Table,
    spots: Spots,
    mistakes: Vec<Mistake>,
    misread: Misread,
    /// Set while every source was read to its end.
    is_whole: bool,
}

impl Merged {
    fn new(defaults: &Config) -> Self {
        // A Config always is a table: what its types serialize to is tested.
        let table = toml::Table::try_from(defaults).unwrap_or_default();
        Self { table, spots: Spots::new(), mistakes: Vec::new(), misread: Misread::default(), is_whole: true }
    }

    fn add(&mut self, checked: Checked<Config>, origin: impl Fn(Option<usize>) -> Origin) {
        lay_over(&mut self.table, checked.accepted);
        // An array replaces the one below it as a whole.
        let replaced = |key: &String| key.split_once('[').is_some_and(|(array, _)| checked.places.contains_key(array));
        self.spots.retain(|key, _| !replaced(key));
        for (key, EntryPlace { line, key: in_text, is_section }) in checked.places {
            let spot = Spot { origin: origin(Some(line)), key: in_text, is_section };
            // A section stands where a file has it; a single key of it does not move it.
            if !is_section || spot.origin.line.is_some() || !self.spots.contains_key(&key) {
                self.spots.insert(key, spot);
            }
        }
        self.is_whole &= checked.value.is_some();
        self.misread.extend(checked.misread);
        self.mistakes.extend(checked.mistakes);
    }

    fn unread(&mut self, source: String, error: &io::Error) {
        self.is_whole = false;
        self.mistakes.push(Mistake::new(source, "", format!("cannot be read: {error}")));
    }

    fn finish(mut self, root: &Path) -> Result<Loaded, Unloaded> {
        let mut config: Config = match self.table.try_into() {
            Ok(config) => config,
            Err(error) => {
                self.mistakes.push(Mistake::new("the configuration as a whole", "", error.message()));
                return Err(Unloaded { mistakes: self.mistakes, rest: None });
            }
        };
        config.resolve(root);
        // Where something was not looked at, anything may be missing only for that.
        let problems = if self.is_whole { config.problems() } else { Vec::new() };
        for (key, problem) in problems {
            let mistake = blamed(&self.spots, &key, problem);
            if !self.misread.explains(&mistake.key, &mistake.message) {
                self.mistakes.push(mistake);
            }
        }
        if !self.mistakes.is_empty() {
            let rest = self.is_whole.then(|| Box::new(Rest { config, spots: self.spots, misread: self.misread }));
            return Err(Unloaded { mistakes: self.mistakes, rest });
        }
        let values = self.spots.iter().filter(|(_, spot)| !spot.is_section);
        let origins = values.map(|(key, spot)| (key.clone(), spot.origin.clone())).collect();
        Ok(Loaded { config, origins, spots: self.spots, left_out: Vec::new() })
    }
}

/// A problem with a key as a mistake of the source that set it. A key of an element of an array that is not set is the
/// element's matter; any other has its default.
fn blamed(spots: &Spots, key: &str, problem: String) -> Mistake {
    let array = key.find('[').unwrap_or(key.len());
    match toml_check::nearest(spots, key, array) {
        Some((Spot { origin: Origin { source, line }, key, .. }, below)) => {
            Mistake { line: *line, ..Mistake::new(source, format!("{key}{below}"), problem) }
        }
        None => Mistake::new("default", key, problem),
    }
}

fn lay_over(below: &mut toml::Table, above: toml::Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => lay_over(below, above),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

impl Loaded {
    /// Why the daemon does not start, although nothing else is wrong: nobody could get in. No mistake of the configuration
    /// itself, so that the command line that mends it can read that.
    pub fn lets_nobody_in(&self) -> Option<Mistake> {
        Some(blamed(&self.spots, "http.listen", self.config.lets_nobody_in()?))
    }

    /// What is of no use here and keeps nothing from working.
    pub fn warnings(&self) -> Vec<Mistake> {
        let warnings = self.config.access.warnings().into_iter();
        warnings.map(|(key, problem)| blamed(&self.spots, &format!("access.{key}"), problem)).collect()
    }

    /// The configuration as a TOML text that says where each value that is not a default was set.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let plain = toml::to_string(&self.config)?;
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
                // Below an element of an array, its index belongs to the key.
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
            if let Some(origin) = self.origins.get(&key) {
                text.extend(["  # from ", &origin.to_string()]);
            }
            text.push('\n');
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
