//! The whole way of an update: `ledge-platform`, nginx with client certificates, a daemon under load.

use crate::daemon::{TestRoot, model_folder};
use crate::platform::{Callers, Fleet, look, subject, wine};

#[test]
fn a_new_version_goes_live_under_load_and_no_request_is_lost() {
    let fleet = Fleet::new("");
    fleet.platform.add_model("wine_mlp", 2, &model_folder("wine_mlp"), &[]);
    let daemon = fleet.enrol(TestRoot::new().models(&["wine_mlp"])).start();
    let callers = Callers::start(&daemon, 4, "wine_mlp", &wine());
    fleet.platform.start(
        "r-1",
        "models/wine_mlp/2",
        &["--shadow", "share=0.5,min_requests=50,max_s=30", "--canary", "share=0.2,min_requests=50,max_s=30"],
    );
    look(&daemon);
    daemon.wait_for_log("update committed");
    let answers = callers.stop_unharmed();
    for answers in &answers {
        assert_eq!(answers.versions.last().map(String::as_str), Some("2"), "{answers:?}");
        assert_eq!(answers.versions.first().map(String::as_str), Some("1"), "{answers:?}");
    }
    let told = subject(&daemon, "models/wine_mlp");
    assert_eq!((told["version"].as_u64(), told["stage"].as_str()), (Some(2), Some("idle")), "{told}");
    assert_eq!(told["last"]["result"], "committed", "{told}");
    // It is what runs after a power cut too, whatever the owner's folder has.
    let daemon = daemon.kill().start();
    assert_eq!(daemon.client().get("/v2/models/wine_mlp").json()["versions"], serde_json::json!(["2"]));
}
