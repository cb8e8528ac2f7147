mod every_mistake;

use ledge_base::durable;

use super::*;

/// A root with a `ledge.toml`.
struct Root(tempfile::TempDir);

impl Root {
    #[expect(clippy::disallowed_methods, reason = "a test does not need a durable file")]
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ledge.toml"), text).unwrap();
        Self(folder)
    }

    fn sources(&self, environment: &[(&str, &str)], set: &[&str]) -> ConfigSources {
        ConfigSources {
            root: Some(self.0.path().to_owned()),
            file: None,
            environment: environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            set: set.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    fn load(&self, environment: &[(&str, &str)], set: &[&str]) -> LoadedConfig {
        self.sources(environment, set).load().unwrap()
    }

    #[track_caller]
    fn mistakes(&self, environment: &[(&str, &str)], set: &[&str], expected: &[&str]) {
        let found = self.sources(environment, set).load().unwrap_err();
        let root = format!("{}/", self.0.path().display());
        let found: Vec<String> = found.iter().map(|mistake| mistake.to_string().replace(&root, "")).collect();
        assert_eq!(found, expected);
    }
}

fn shipped() -> &'static str {
    include_str!("../../../configs/ledge.toml")
}

#[test]
fn the_shipped_file_changes_nothing_and_names_every_key_with_its_default() {
    assert_eq!(toml_check::parse::<Config>("shipped", shipped()), Ok(Config::default()));

    let uncommented: Vec<&str> = shipped()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase()) => key,
            _ => line,
        })
        .collect();
    let uncommented = uncommented.join("\n");
    assert_eq!(toml_check::parse::<Config>("shipped", &uncommented), Ok(Config::default()));
    assert_eq!(uncommented.parse::<toml::Table>().unwrap(), toml::Table::try_from(Config::default()).unwrap());
}

#[test]
fn the_examples_in_the_shipped_file_work() {
    let examples: Vec<&str> = shipped().lines().filter_map(|line| line.strip_prefix("#     ")).collect();
    let root = Root::new(&examples.join("\n"));
    let views = root.0.path().join("feature_views.d");
    std::fs::create_dir(&views).unwrap();
    let declared = r#"
        entity = [{ name = "machine", join_key = "machine_id", value_type = "String" }]
        [[feature_view]]
        name = "vibration"
        entities = ["machine"]
        schema = [{ name = "rms", dtype = "Float32" }]
    "#;
    ledge_base::durable::replace(&views.join("views.toml"), declared.as_bytes()).unwrap();
    let config = root.load(&[], &[]).config;
    assert_eq!((config.mqtt.bindings.len(), config.camera.0.len(), config.alert.0.len()), (5, 1, 1));
}

#[test]
fn mistakes_of_every_source_come_together() {
    Root::new(
        "[http]\nlisten = ['localhost', '127.0.0.1:8000']\nmax_connections = 0\n[log]\nformat = 'xml'\n\n[htpp]\n[serving]\nmax_queue = 3\n",
    )
    .mistakes(
        &[
            ("LEDGE_CONTROL_THREADS", "many"),
            ("LEDGE_HTTP_MAX_BODY_BYTE", "4096"),
            ("LEDGE_HTPP_LISTEN", "[]"),
            ("LEDGE_HTTP", "x"),
            ("LEDGE_DEVICE_ID", "shop/7"),
            ("PATH", "/bin"),
        ],
        &["http.listen=['0.0.0.0:80']", "log.level=verbose", "http.socket_mode=[", "verbose", "shutdown.grace_ms=-1"],
        &[
            "ledge.toml:2: http.listen[0]: expected \"HOST:PORT\" or \"https://HOST:PORT\" with an IP address or localhost, or \"unix:PATH\", got \"localhost\"",
            "ledge.toml:3: http.max_connections: expected a whole number from 1 to 65536, got 0",
            "ledge.toml:5: log.format: unknown value `xml`, expected one of `auto`, `journal`, `text`, `json`",
            "ledge.toml:7: htpp: unknown field `htpp`, expected one of `http`, `grpc`, `vision`, `openai`, `documents`, `console`, `history`, `access`, `repository`, `runtimes`, `serving`, `response_cache`, `quota`, `drift`, `features`, `egress`, `audit`, `encryption`, `log`, `device`, `mqtt`, `camera`, `home_assistant`, `alert`, `inbox`, `accounts`, `budget`, `objective`, `jobs`, `membership`, `updates`, `upgrades`, `catalogue`, `state`, `retention`, `shutdown`, `control`",
            "ledge.toml:9: serving.max_queue: unknown field `max_queue`, expected one of `max_queue_size`, `default_timeout_ms`, `batch_windows`",
            "LEDGE_CONTROL_THREADS: control.threads: expected a whole number from 1 to 16, got a string",
            "LEDGE_DEVICE_ID: device.id: device name \"shop/7\" has a character outside A-Z a-z 0-9 . _ -",
            "LEDGE_HTPP_LISTEN: htpp: unknown field `htpp`, expected one of `http`, `grpc`, `vision`, `openai`, `documents`, `console`, `history`, `access`, `repository`, `runtimes`, `serving`, `response_cache`, `quota`, `drift`, `features`, `egress`, `audit`, `encryption`, `log`, `device`, `mqtt`, `camera`, `home_assistant`, `alert`, `inbox`, `accounts`, `budget`, `objective`, `jobs`, `membership`, `updates`, `upgrades`, `catalogue`, `state`, `retention`, `shutdown`, `control`",
            "LEDGE_HTTP: is not a key: expected LEDGE_SECTION_KEY",
            "LEDGE_HTTP_MAX_BODY_BYTE: http.max_body_byte: unknown field `max_body_byte`, expected one of `listen`, `socket_mode`, `allowed_hosts`, `max_body_bytes`, `max_memory_bytes`, `max_pixels`, `max_connections`, `header_timeout_ms`, `body_timeout_ms`, `write_timeout_ms`, `tls`, `local_plain`",
            "--set log.level: expected off, error, warn, info, debug or trace, or TARGET=LEVEL, separated by commas, got \"verbose\"",
            "--set http.socket_mode: is not a TOML value: unclosed array, expected `]`",
            "--set verbose: expected SECTION.KEY=VALUE, for example log.level=debug",
            "--set shutdown.grace_ms: expected a whole number from 0 to 600000, got -1",
        ],
    );
}

#[test]
fn a_later_source_wins() {
    let root = Root::new("[http]\nmax_connections = 2\nmax_pixels = 2\nmax_body_bytes = 2048\n");
    let environment = [("LEDGE_HTTP_MAX_PIXELS", "3"), ("LEDGE_HTTP_MAX_BODY_BYTES", "3072")];
    let loaded = root.load(&environment, &["http.max_body_bytes=4096", "http.max_body_bytes=5120"]);
    let http = &loaded.config.http;
    assert_eq!((http.max_connections, http.max_pixels, http.max_body_bytes), (2, 3, 5120));
    assert_eq!(http.header_timeout_ms, 30_000);
    let text = loaded.to_toml().unwrap();
    assert!(text.contains("ledge.toml:2\n"), "{text}");
    for line in [
        "max_pixels = 3  # from LEDGE_HTTP_MAX_PIXELS",
        "max_body_bytes = 5120  # from --set http.max_body_bytes",
        "header_timeout_ms = 30000",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn a_setting_that_replaces_one_of_the_platform_is_named() {
    let own = "[serving]\nmax_queue_size = 8\n[device]\nid = \"till-7\"\n[mqtt]\nbroker = \"mqtt://localhost\"\n";
    let root = Root::new(own);
    let membership = root.0.path().join("membership");
    durable::create_folder(&membership).unwrap();
    let settings = "[device]\nid = \"till-7\"\n[mqtt]\nbroker = \"mqtts://platform.lan\"\n\
                    [mqtt.tls]\nca_file = \"/ca\"\n[serving]\nmax_queue_size = 7\n";
    durable::replace(&membership.join("settings.toml"), settings.as_bytes()).unwrap();
    let loaded = root.load(&[], &[]);
    let named: Vec<String> = loaded.replaced_settings().map(|replaced| replaced.to_string()).collect();
    let [queue, broker] = named.as_slice() else { panic!("{named:?}") };
    let said = "this setting of the box counts, and not the one of its platform";
    assert!(queue.ends_with(&format!("ledge.toml:2: serving.max_queue_size: {said}")), "{queue}");
    // With all that the platform sets for its own broker: TLS would be a mistake here.
    assert!(broker.ends_with(&format!("ledge.toml:6: mqtt.broker: {said}")), "{broker}");
}

#[test]
fn a_variable_reaches_a_section_whose_name_has_a_line_in_it() {
    let config = Root::new("").load(&[("LEDGE_RESPONSE_CACHE_MAX_BYTES", "7")], &[]).config;
    assert_eq!(config.response_cache.max_bytes, 7);
}

#[test]
fn a_variable_reaches_a_section_within_a_section() {
    let environment = [("LEDGE_MQTT_TLS_CA_FILE", "/etc/ca.pem"), ("LEDGE_MQTT_PROTOCOL", "5")];
    let config =
        Root::new("").load(&environment, &["mqtt.tls.certificate_file=c", "mqtt.tls.key_file=credential:key"]).config;
    assert_eq!(config.mqtt.tls.ca_file, "/etc/ca.pem".parse().ok());
    assert_eq!(config.mqtt.tls.key_file, "credential:key".parse().ok());
}

/// Two bindings, the second of which begins in line 5.
const TWO_BINDINGS: &str = "[[mqtt.bindings]]\ntopic = 'a'\nmodel = 'm'\npublish = 'b'\n[[mqtt.bindings]]\ntopic = 'c'\n\
                        model = 'm'\npublish = 'd'\n[mqtt.bindings.inputs]\nx = ['$.t']\n";

#[test]
fn a_table_of_an_array_is_shown_with_where_each_key_was_set() {
    let root = Root::new(TWO_BINDINGS);
    let text = root.load(&[], &[]).to_toml().unwrap().replace(&format!("{}/", root.0.path().display()), "");
    for line in [
        "topic = \"a\"  # from ledge.toml:2\n",
        "publish = \"d\"  # from ledge.toml:8\n",
        "x = [\"$.t\"]  # from ledge.toml:10\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(toml_check::parse::<Config>("shown", &text).map(|config| config.mqtt.bindings.len()), Ok(2));
}

#[test]
fn a_problem_of_a_table_in_an_array_is_blamed_on_its_line() {
    let file = TWO_BINDINGS.replace("publish = 'd'", "publish = 'a'");
    let loop_back = "a may be a topic that the binding \"a\" takes: answers would loop";
    Root::new(&file).mistakes(&[], &[], &[&format!("ledge.toml:8: mqtt.bindings[1].publish: {loop_back}")]);
    let replacing = "mqtt.bindings=[{topic='x',model='m',publish='y'},{topic='a',model='m',publish='a'}]";
    let expected = format!("--set mqtt.bindings: mqtt.bindings[1].publish: {loop_back}");
    Root::new(TWO_BINDINGS).mistakes(&[], &[replacing], &[&expected]);
    let harmless = ("LEDGE_MQTT_BINDINGS", "[{topic='x',model='m',publish='y'}]");
    assert_eq!(Root::new(&file).load(&[harmless], &[]).config.mqtt.bindings.len(), 1);
    let both = file.replacen("topic = 'a'", "topic = '+a'", 1);
    let wrong = "topic filter \"+a\" has a '+' that is not a whole level";
    Root::new(&both).mistakes(&[], &[], &[&format!("ledge.toml:2: mqtt.bindings[0].topic: {wrong}")]);
}

#[test]
fn a_binding_pushes_where_callers_over_mqtt_may() {
    let root = Root::new("[[mqtt.bindings]]\ntopic = 'a'\npush_source = 's'\n");
    let refused = |roles: &str| {
        // The push source is not declared, which is another mistake.
        let mistakes = root.sources(&[], &[&format!("access.mqtt.roles={roles}")]).check().mistakes;
        let problem = "ledge.toml:3: mqtt.bindings[0].push_source: needs the permission to push over MQTT: add \
                       feature-writer to access.mqtt.roles";
        mistakes.iter().any(|mistake| mistake.to_string().ends_with(problem))
    };
    assert_eq!(["[]", "['infer']", "['feature-writer']", "['admin']"].map(refused), [true, true, false, false]);
}

#[test]
fn holders_of_certificates_are_for_a_box_that_asks_for_certificates() {
    let root = Root::new("[[access.certificates]]\nname = 'till'\nroles = ['infer']\n");
    let problem = "has no effect, because the server does not ask for client certificates: set \
                   http.tls.client_certificates to \"optional\" or \"required\"";
    root.mistakes(&[], &[], &[&format!("ledge.toml:1: access.certificates: {problem}")]);
    let asks = ["http.tls.client_certificates=optional", "http.tls.client_ca_file=ca.pem"];
    assert_eq!(root.load(&[], &asks).config.access.certificates.len(), 1);
}

#[test]
fn what_a_group_shares_needs_a_group() {
    let file = TWO_BINDINGS.replace("publish = 'd'", "publish = 'd'\nshared = true");
    let problem = "is for the boxes of a group: set device.group";
    Root::new(&file).mistakes(&[], &[], &[&format!("ledge.toml:9: mqtt.bindings[1].shared: {problem}")]);
    Root::new(&file).load(&[], &["device.group=shop"]);
    let same = "is the name of this box, so every box of the group would answer its calls: give the group another name";
    Root::new("[device]\nid = 'x'\ngroup = 'x'").mistakes(&[], &[], &[&format!("ledge.toml:3: device.group: {same}")]);
}

#[test]
fn an_alert_needs_a_way_out_that_may_carry_it() {
    let root = Root::new(
        "[[alert]]\nname = 'a'\nmqtt = true\n[[alert]]\nname = 'b'\nurl = 'https://h/x'\n\
         [[egress.allow]]\nhost = 'h:443'\nregion = 'eu'\nsend = ['answers']\n",
    );
    let refused = "has no effect, because the entry of h:443 in egress.allow does not let alerts out: add \"alerts\" to \
                   its `send`";
    root.mistakes(
        &[],
        &[],
        &[
            "ledge.toml:3: alert[0].mqtt: needs a broker, which gets the messages: set mqtt.broker",
            &format!("ledge.toml:6: alert[1].url: {refused}"),
        ],
    );
    let broker = ["mqtt.broker=mqtt://127.0.0.1", "egress.allow=[{host=\"h:443\",region=\"eu\"}]"];
    assert_eq!(root.load(&[], &broker).config.alert.0.len(), 2);
    let closed = "egress.allow=[{host=\"h:443\",region=\"eu\"},{host=\"127.0.0.1:1883\",region=\"eu\",send=[]}]";
    root.mistakes(
        &[],
        &["mqtt.broker=mqtt://127.0.0.1", closed],
        &[&format!("ledge.toml:3: alert[0].mqtt: {}", refused.replace("h:443", "127.0.0.1:1883"))],
    );
}

#[test]
fn what_cameras_publish_needs_a_broker_that_may_get_it() {
    let root = Root::new(
        "[[camera]]\nname = 'door'\n[[camera]]\nname = 'yard'\npublish_pictures = true\n[home_assistant]\nenable = true\n[history]\nunusual_mqtt = true\n",
    );
    root.mistakes(
        &[],
        &[],
        &[
            "ledge.toml:5: camera[1].publish_pictures: needs a broker, which gets the pictures: set mqtt.broker",
            "ledge.toml:7: home_assistant.enable: needs a broker, which gets the entities: set mqtt.broker",
            "ledge.toml:9: history.unusual_mqtt: needs a broker, which gets the messages: set mqtt.broker",
        ],
    );
    root.load(&[], &["mqtt.broker=mqtt://127.0.0.1"]);
    assert_eq!(
        root.load(&[], &["camera=[]", "home_assistant.enable=false", "history.unusual_mqtt=false"])
            .config
            .camera
            .0
            .len(),
        0
    );

    let to = |send: &str| {
        let entry = format!("egress.allow=[{{host=\"b:8883\",region=\"eu\"{send}}}]");
        root.sources(&[], &["mqtt.broker=mqtts://b", &entry]).load().map_err(|mistakes| mistakes[0].to_string())
    };
    assert!(to("").is_ok() && to(",send=[\"answers\",\"presence\",\"pictures\",\"alerts\"]").is_ok());
    let denied = "ledge.toml:5: camera[1].publish_pictures: has no effect, because the entry of b:8883 in egress.allow does \
                  not let pictures out: add \"pictures\" to its `send`, or set publish_pictures = false";
    assert!(to(",send=[\"answers\",\"presence\"]").is_err_and(|mistake| mistake.ends_with(denied)));
}

#[test]
fn a_password_in_the_url_of_a_camera_is_used_and_not_shown() {
    let root = Root::new("[[camera]]\nname = 'yard'\nurl = 'http://127.0.0.1/api.cgi?user=a&password=geheim'\n");
    let loaded = root.load(&[], &[]);
    assert!(loaded.config.camera.0[0].url.as_ref().unwrap().path.ends_with("password=geheim"));
    let shown = loaded.to_toml().unwrap();
    assert!(shown.contains("user=a&password=<hidden>\"  # from ") && !shown.contains("geheim"), "{shown}");
    assert!(!format!("{:?}", loaded.config).contains("geheim"));
}

#[test]
fn no_mistake_repeats_what_may_be_a_secret() {
    for set in [
        "mqtt.broker=mqtts://box:geheim@b",
        "mqtt.password_file=[\"geheim\"]",
        "mqtt.keep_alive_s=\"geheim\"",
        "mqtt=geheim",
        "updates.repository=https://box:geheim@h/r",
        "updates.proxy=box:geheim@p:3128",
        "audit.sync.url=https://box:geheim@h/r",
        "audit.otlp.url=https://h/v1/logs?token=geheim",
        "camera=[{name=\"yard\", url=\"http://box:geheim@h/\"}]",
        "alert=[{name=\"shop\", url=\"https://h/#geheim\"}]",
    ] {
        let found = Root::new("").sources(&[], &[set]).load().unwrap_err();
        assert!(!found.iter().any(|mistake| mistake.to_string().contains("geheim")), "{found:?}");
    }
}

#[test]
fn a_camera_without_labels_is_no_count_in_home_assistant() {
    let warned = |labels: &str, enable: bool| {
        let zone = "[[camera.zones]]\nname = 'gate'\npoints = [[0, 0], [1, 0], [1, 1]]\n";
        let file = format!("[mqtt]\nbroker = 'mqtt://127.0.0.1'\n[[camera]]\nname = 'yard'\n{zone}{labels}");
        let warnings = Root::new(&file).load(&[], &[&format!("home_assistant.enable={enable}")]).warnings();
        warnings.iter().map(|warning| format!("{} {}", warning.line.unwrap(), warning.key)).collect::<Vec<_>>()
    };
    assert_eq!(warned("", true), ["3 camera[0].labels"]);
    assert_eq!((warned("", false), warned("labels = ['person']", true)), (vec![], vec![]));
}

#[test]
fn a_value_needs_no_quotes_where_only_a_text_fits() {
    let root = Root::new("");
    let environment =
        [("LEDGE_HTTP_LISTEN", "[::1]:9000"), ("LEDGE_DEVICE_ID", "1234"), ("LEDGE_DEVICE_FLEET", "true")];
    let config =
        root.load(&environment, &["log.level=info,ort=error", "device.group='42'", "http.socket_mode=0600"]).config;
    assert_eq!(config.http.listen, ["[::1]:9000".parse().unwrap()]);
    assert_eq!(config.device.id, "1234".parse().ok());
    assert_eq!((config.device.fleet, config.device.group), ("true".parse().ok(), "42".parse().ok()));
    assert_eq!((config.log.level.to_string().as_str(), config.http.socket_mode.bits()), ("info,ort=error", 0o600));
}

#[test]
fn one_value_cannot_set_another_key() {
    Root::new("").mistakes(
        &[],
        &["device.id='x'\n[log]\nlevel='trace'"],
        &["--set device.id: is not a TOML value: unexpected content, expected nothing"],
    );
}

#[test]
fn variables_of_others_are_ignored() {
    let others =
        ["LEDGE_ROOT", "LEDGE_CONFIG", "LEDGE_TEST_X", "LEDGE_SERVICE_HOST", "LEDGE_PORT", "LEDGE_PORT_8000_TCP"];
    assert!(Root::new("").load(&others.map(|name| (name, "x")), &[]).origins().is_empty());
}

#[test]
fn what_does_not_fit_together_is_blamed_on_where_it_was_set() {
    let beyond = "0.0.0.0:80 can be reached from the network without encryption: set it to https://0.0.0.0:80 with a \
                  certificate in [http.tls], or to 127.0.0.1:80, [::1]:80 or a unix: path";
    let root = Root::new("[http]\nlisten = [\n  '0.0.0.0:80',\n]\n");
    root.mistakes(&[], &[], &[&format!("ledge.toml:3: http.listen[0]: {beyond}")]);
    root.mistakes(&[], &["http.listen=0.0.0.0:80"], &[&format!("--set http.listen: http.listen[0]: {beyond}")]);
    root.load(&[("LEDGE_HTTP_LISTEN", "127.0.0.1:0")], &[]);
}

#[test]
fn an_element_of_an_array_has_a_line_of_its_own() {
    let root = Root::new(
        "[egress]\nresidency = ['eu']\n\n[[egress.allow]]\nhost = 'Broker:1'\nregion = 'us'\n\n[[egress.allow]]\n\
         host = 'broker:1'\nregion = 'ch'\n",
    );
    let foreign = |region: &str| format!("\"{region}\" is not in egress.residency, the regions where data may be: eu");
    root.mistakes(
        &[],
        &[],
        &[
            &format!("ledge.toml:6: egress.allow[0].region: {}", foreign("us")),
            "ledge.toml:9: egress.allow[1].host: broker:1 is named twice",
            &format!("ledge.toml:10: egress.allow[1].region: {}", foreign("ch")),
        ],
    );
    // A later source replaces the array and its lines completely.
    let environment = [("LEDGE_EGRESS_ALLOW", "[{host = 'a:1', region = 'us'}]")];
    root.mistakes(&environment, &[], &[&format!("LEDGE_EGRESS_ALLOW: egress.allow[0].region: {}", foreign("us"))]);
    let shown = root.load(&[], &["egress.residency=[]", "egress.allow=[{host='a:1', region='us'}]"]).to_toml().unwrap();
    let own = "[[egress.allow]]  # from --set egress.allow\nhost = \"a:1\"  # from --set egress.allow\n";
    assert!(shown.contains(own) && !shown.contains("ledge.toml"), "{shown}");
}

#[test]
fn paths_are_relative_to_the_root() {
    let root = Root::new("[repository]\npath = '/srv/models'\n[runtimes]\ncache = '../cache'\n");
    let config = root.load(&[], &[]).config;
    let path = root.0.path();
    assert_eq!(config.repository.path, Path::new("/srv/models"));
    assert_eq!((config.runtimes.dir, config.runtimes.cache), (path.join("runtimes"), path.join("../cache")));
    assert_eq!(config.state.path, path);
    let socket = format!("unix:{}/ledge.sock", path.display());
    assert_eq!(config.http.listen.last().map(ToString::to_string), Some(socket));
}

#[test]
fn a_file_alone_makes_its_folder_the_root() {
    let root = Root::new("");
    let sources = ConfigSources { file: Some(root.0.path().join("ledge.toml")), ..ConfigSources::default() };
    assert_eq!(Config::load(&sources).unwrap().state.path, root.0.path());
}

#[test]
fn the_package_has_its_own_places() {
    let config = Config::packaged();
    assert!(config.problems(&BTreeSet::new()).is_empty());
    let mut resolved = config.clone();
    resolved.resolve(Path::new("/elsewhere"));
    assert_eq!(resolved, config, "every path of the package is absolute");
    assert_eq!(config.state.path, Path::new("/var/lib/ledge"));
}

#[test]
fn a_file_or_root_that_was_asked_for_must_be_there() {
    let root = Root::new("");
    let missing = root.0.path().join("missing");
    let sources = ConfigSources { root: Some(missing.clone()), file: Some(missing), ..ConfigSources::default() };
    let found: Vec<String> = sources.load().unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].ends_with("missing: cannot be read: No such file or directory (os error 2)"), "{found:?}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test does not need a durable file")]
fn a_file_that_is_no_text_or_too_large_is_a_mistake() {
    let root = Root::new("");
    let path = root.0.path().join("ledge.toml");
    std::fs::write(&path, b"[http]\n# \xff\n").unwrap();
    root.mistakes(&[], &["log.level=x"], &[
        "ledge.toml: cannot be read: line 2 is not UTF-8 text",
        "--set log.level: expected off, error, warn, info, debug or trace, or TARGET=LEVEL, separated by commas, got \"x\"",
    ]);
    std::fs::write(&path, "\n".repeat((1 << 20) + 1)).unwrap();
    root.mistakes(&[], &[], &["ledge.toml: cannot be read: larger than 1048576 bytes"]);
}

#[test]
fn the_shipped_file_states_the_range_of_every_key_of_the_feature_store() {
    let section = shipped().split_once("[features]").unwrap().1.split_once("\n[").unwrap().0;
    let mut ranges = 0;
    for paragraph in section.split("\n\n") {
        let words = paragraph.replace("\n# ", " ");
        let Some((_, range)) = words.split_once("From ") else { continue };
        let (least, rest) = range.split_once(" to ").unwrap();
        let most = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()];
        let key = paragraph.lines().last().unwrap().strip_prefix('#').unwrap().split_once(" = ").unwrap().0;
        let accepted =
            |value: i128| toml_check::parse::<Config>("set", &format!("[features]\n{key} = {value}")).is_ok();
        let (least, most): (i128, i128) = (least.parse().unwrap(), most.parse().unwrap());
        assert!(accepted(least) && accepted(most), "{key}");
        assert!(!accepted(least - 1) && !accepted(most + 1), "{key}");
        ranges += 1;
    }
    assert_eq!(ranges, 5);
}

impl Root {
    /// Makes these the live signed settings.
    fn signed(self, text: &str) -> Self {
        use ledge_updates::persisted::PersistedStates;
        use ledge_updates::state::{InstalledRelease, SubjectState};

        let updates = self.0.path().join("updates");
        let release = updates.join("releases/configurations/night/3-abababababababab");
        std::fs::create_dir_all(&release).unwrap();
        ledge_base::durable::replace(&release.join("settings.toml"), text.as_bytes()).unwrap();
        let mut persisted = PersistedStates::empty(&updates);
        let committed = InstalledRelease { version: "3".parse().unwrap(), digest: "ab".repeat(32) };
        let state = SubjectState { committed: Some(committed), ..SubjectState::default() };
        persisted.subjects.insert("configurations/night".parse().unwrap(), state);
        persisted.write().unwrap();
        self
    }
}

#[test]
fn signed_settings_lie_over_the_defaults_and_under_everything_of_the_box() {
    let settings =
        "[serving]\nmax_queue_size = 5\ndefault_timeout_ms = 5\n[quota]\nburst = 5\n[updates]\npoll_interval_s = 5\n";
    let root = Root::new("[serving]\ndefault_timeout_ms = 6\n").signed(settings);
    let loaded = root.load(&[("LEDGE_QUOTA_BURST", "7")], &["updates.poll_interval_s=8"]);
    let config = &loaded.config;
    assert_eq!((config.serving.max_queue_size, config.serving.default_timeout_ms), (5, 6));
    assert_eq!((config.quota.burst, config.updates.poll_interval_s), (7, 8));
    let origin = loaded.origins()["serving.max_queue_size"].to_string();
    assert!(origin.ends_with("updates/releases/configurations/night/3-abababababababab/settings.toml:2"), "{origin}");
    assert_eq!(loaded.rejected_signed, []);
}

#[test]
fn signed_settings_are_found_where_the_box_keeps_its_updates() {
    let root = Root::new("[updates]\npath = \"elsewhere\"\n").signed("[serving]\nmax_queue_size = 5\n");
    assert_eq!(root.load(&[], &[]).config.serving.max_queue_size, 1024);
    assert_eq!(root.load(&[("LEDGE_UPDATES_PATH", "updates")], &[]).config.serving.max_queue_size, 5);
}

#[test]
fn signed_settings_with_a_mistake_are_ignored_as_a_whole_and_the_box_starts() {
    for (settings, words) in [
        (
            "[serving]\nmax_queue_size = 5\n[http]\nlisten = []\n",
            "settings.toml:4: http.listen: can be set only by the owner",
        ),
        ("[serving]\nmax_queue_size = 5\ndefault_timeout_ms = 0\n", "serving.default_timeout_ms"),
        (
            "[serving]\nmax_queue_size = 5\n[mqtt]\nbroker = \"mqtt://else.where\"\n",
            "mqtt.broker: can be set only by the owner",
        ),
        // Valid by itself, and a mistake on a box without a group.
        (
            "[serving]\nmax_queue_size = 5\n[[mqtt.bindings]]\ntopic = \"a\"\nmodel = \"m\"\nshared = true\n",
            "mqtt.bindings[0]",
        ),
        ("[serving]\nmax_queue_size = 5\n[", "settings.toml:3"),
    ] {
        let loaded = Root::new("").signed(settings).load(&[], &[]);
        assert_eq!(loaded.config.serving.max_queue_size, 1024, "{settings}");
        let told: Vec<String> = loaded.rejected_signed.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|mistake| mistake.contains(words)), "{settings}: {told:?}");
    }
}

#[test]
fn mistakes_of_the_box_itself_are_not_blamed_on_signed_settings() {
    let root = Root::new("[serving]\nmax_queue_size = 0\n").signed("[serving]\nmax_queue_size = 5\n");
    let expected = "ledge.toml:2: serving.max_queue_size: expected a whole number from 1 to 1000000, got 0";
    root.mistakes(&[], &[], &[expected]);
}

#[test]
fn no_key_outside_the_closed_set_gets_in() {
    fn leaves(table: &toml::Table, above: &str, found: &mut Vec<(String, toml::Value)>) {
        for (key, value) in table {
            let key = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
            match value {
                toml::Value::Table(table) => leaves(table, &key, found),
                value => found.push((key, value.clone())),
            }
        }
    }
    let mut found = Vec::new();
    leaves(&toml::Table::try_from(Config::default()).unwrap(), "", &mut found);
    let mut settable = 0;
    for (key, value) in &found {
        // With its default value, so that only the key can be a mistake.
        let loaded = Root::new("").signed(&format!("{key} = {value}\n")).load(&[], &[]);
        assert_eq!(
            loaded.rejected_signed.is_empty(),
            configuration::is_settable(key),
            "{key}: {:?}",
            loaded.rejected_signed
        );
        settable += usize::from(loaded.rejected_signed.is_empty());
    }
    // Each key of the closed set exists.
    assert_eq!(settable, configuration::SETTABLE_KEYS.len());
}

#[test]
fn every_destination_is_checked_whatever_section_names_it() {
    let text = "[mqtt]\nbroker = 'mqtt://b'\n[updates]\nrepository = 'http://u/'\nproxy = 'p:1'\n[audit.sync]\n\
                url = 'http://c/'\nproxy = 'p:2'\n[audit.syslog]\nto = 's:1'\n[audit.otlp]\nurl = 'http://o/'\n";
    let mistakes = |more: &str| -> Vec<(String, String)> {
        let found = Root::new(&format!("{text}{more}")).sources(&[], &[]).load().unwrap_err();
        found.into_iter().map(|mistake| (mistake.key, mistake.message)).collect()
    };
    let found: Vec<_> = mistakes("")
        .into_iter()
        .map(|(key, message)| match message {
            message if message.contains("is not in the allow-list") => format!("{key} is not allowed"),
            message if message.contains("not encrypted") || message.contains("readable for everybody") => {
                format!("{key} is readable")
            }
            message => panic!("{key}: {message}"),
        })
        .collect();
    assert_eq!(
        found,
        [
            "audit.sync.url is readable",
            "audit.sync.url is not allowed",
            "audit.sync.proxy is not allowed",
            "audit.syslog.to is not allowed",
            "audit.otlp.url is readable",
            "audit.otlp.url is not allowed",
            "mqtt.broker is readable",
            "mqtt.broker is not allowed",
            "updates.repository is readable",
            "updates.repository is not allowed",
            "updates.proxy is not allowed",
        ]
    );
    let hosts = ["b:1883", "u:80", "p:1", "c:80", "p:2", "s:1", "o:80"];
    let allow = hosts.map(|host| format!("[[egress.allow]]\nhost = '{host}'\nregion = 'eu'\n")).concat();
    let keys: Vec<_> = mistakes(&allow).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["audit.sync.url", "audit.otlp.url", "mqtt.broker", "updates.repository"]);
}

/// The part of the settings of a membership that is for Prometheus.
const PLATFORM_METRICS: &str = "[http]\nlisten = ['https://0.0.0.0:9443']\n[http.tls]\ncertificate_file = '/m/identity.pem'\n\
                                key_file = '/m/identity.pem'\nclient_ca_file = '/m/ca.pem'\nclient_certificates = 'optional'\n\
                                [[access.certificates]]\nname = 'prometheus'\nroles = ['viewer']\n";

/// A box with its own settings that is a member of a platform with a Prometheus.
fn scraped(text: &str) -> LoadedConfig {
    let root = Root::new(text);
    let folder = root.0.path().join("membership");
    std::fs::create_dir(&folder).unwrap();
    ledge_base::durable::replace(&folder.join(SETTINGS_FILE), PLATFORM_METRICS.as_bytes()).unwrap();
    root.load(&[], &[])
}

fn listeners(loaded: &LoadedConfig) -> Vec<String> {
    let listen = loaded.config.http.listen.iter().map(ToString::to_string);
    listen.filter(|address| !address.starts_with("unix:")).collect()
}

fn certificate_names(loaded: &LoadedConfig) -> Vec<&str> {
    loaded.config.access.certificates.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn the_listener_for_the_prometheus_of_a_platform_is_added_to_the_default_ones() {
    let loaded = scraped("[http]\nmax_connections = 7\n[http.tls]\nhandshake_timeout_ms = 5000");
    assert_eq!(listeners(&loaded), ["127.0.0.1:8000", "https://0.0.0.0:9443"]);
    assert_eq!((loaded.config.http.listen.len(), certificate_names(&loaded)), (3, vec!["prometheus"]));
    assert_eq!(loaded.config.http.tls.certificate_file, Some("/m/identity.pem".parse().unwrap()));
    assert_eq!(loaded.config.http.tls.handshake_timeout_ms, 5000);
    assert_eq!(loaded.metrics.as_ref().and_then(PlatformMetrics::problem), None);
    assert_eq!(loaded.config.lets_nobody_in(), None);
    let origin = |key: &str| loaded.origins()[key].to_string().rsplit('/').next().unwrap().to_owned();
    assert_eq!(
        (origin("http.listen"), origin("http.tls.key_file")),
        ("settings.toml:2".into(), "settings.toml:5".into())
    );
    assert_eq!(origin("access.certificates[0].roles"), "settings.toml:10");
}

#[test]
fn certificates_that_the_owner_lists_do_not_drop_that_of_prometheus() {
    let loaded = scraped("[[access.certificates]]\nname = 'till'\nroles = ['infer']");
    assert_eq!(certificate_names(&loaded), ["till", "prometheus"]);
    let origin = |key: &str| loaded.origins()[key].to_string().rsplit('/').next().unwrap().to_owned();
    assert_eq!(origin("access.certificates[0].name"), "ledge.toml:2");
    assert_eq!(origin("access.certificates[1].name"), "settings.toml:9");
    let own = scraped("[[access.certificates]]\nname = 'prometheus'\nroles = []");
    assert_eq!(own.config.access.certificates.iter().map(|entry| entry.roles.len()).collect::<Vec<_>>(), [0]);
}

#[test]
fn a_certificate_of_the_owner_is_kept_and_hides_the_metrics_from_the_platform() {
    let own = "[http]\nlisten = ['127.0.0.1:8000', 'https://0.0.0.0:9443']\n[http.tls]\nself_signed = true";
    let loaded = scraped(own);
    assert_eq!(listeners(&loaded), ["127.0.0.1:8000", "https://0.0.0.0:9443"]);
    assert_eq!((loaded.config.http.tls.certificate_file.as_ref(), certificate_names(&loaded).len()), (None, 0));
    assert!(loaded.metrics.as_ref().unwrap().problem().unwrap().contains("http.tls.self_signed is set in"));

    let loaded = scraped(
        "[http.tls]\ncertificate_file = 'a.pem'\nkey_file = 'a.key'\nclient_ca_file = 'ca.pem'\nclient_certificates = 'required'",
    );
    assert_eq!((listeners(&loaded), certificate_names(&loaded).len()), (vec!["127.0.0.1:8000".to_owned()], 0));
}

#[test]
fn addresses_of_the_owner_are_kept_and_hide_the_metrics_unless_the_port_is_among_them() {
    let loaded = scraped("[http]\nlisten = '127.0.0.1:9000'");
    assert_eq!(listeners(&loaded), ["127.0.0.1:9000"]);
    let metrics = loaded.metrics.as_ref().unwrap();
    assert!(metrics.problem().unwrap().contains("http.listen is set in"), "{metrics}");
    assert_eq!(metrics.remedy(), "add \"https://0.0.0.0:9443\" to http.listen");
    for (listen, is_served) in
        [("https://192.0.2.7:9443", true), ("https://192.0.2.7:9444", false), ("127.0.0.1:9443", false)]
    {
        let loaded = scraped(&format!("[http]\nlisten = '{listen}'"));
        assert_eq!(listeners(&loaded), [listen]);
        assert_eq!(loaded.metrics.unwrap().problem().is_none(), is_served, "{listen}");
    }
}

#[test]
fn the_owner_alone_allows_questions_and_with_them_lets_their_answers_out() {
    let sent = |own: &str| {
        let root = Root::new(own);
        let folder = root.0.path().join("membership");
        std::fs::create_dir(&folder).unwrap();
        let made = "[[egress.allow]]\nhost = \"p.example:443\"\nregion = \"eu\"\nsend = [\"certificates\", \"audit\"]\n\
                    [[egress.allow]]\nhost = \"p.example:8883\"\nregion = \"eu\"\nsend = [\"presence\"]\n";
        ledge_base::durable::replace(&folder.join(SETTINGS_FILE), made.as_bytes()).unwrap();
        let allow = root.load(&[], &[]).config.egress.allow;
        let sent = allow.into_iter().map(|entry| (entry.host.to_string(), entry.send));
        sent.filter(|(_, send)| send.contains(&EgressContent::Diagnosis)).map(|(host, _)| host).collect::<Vec<_>>()
    };
    let questions = "[membership]\nquestions = [\"doctor\"]\n";
    let other = "[[egress.allow]]\nhost = \"x:1\"\nregion = \"eu\"\nsend = [\"alerts\"]\n";
    assert_eq!(sent(""), Vec::<String>::new());
    assert_eq!(sent(questions), ["p.example:443"]);
    assert_eq!(sent(&format!("{questions}{other}")), ["p.example:443"]);
    let own = "[[egress.allow]]\nhost = \"p.example:443\"\nregion = \"eu\"\nsend = [\"certificates\"]\n";
    assert_eq!(sent(&format!("{questions}{own}")), Vec::<String>::new(), "the owner's entry is as the owner wants it");
    let unknown = Root::new("[membership]\nquestions = [\"logs\"]\n");
    let said = unknown.sources(&[], &[]).load().unwrap_err()[0].to_string();
    assert!(said.contains("membership.questions[0]") && said.contains("`logs`"), "{said}");
}
