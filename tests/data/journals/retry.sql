BEGIN TRANSACTION;
CREATE TABLE anabranch_blob (digest blob not null unique, value blob not null) strict;
CREATE TABLE anabranch_check (value blob not null) strict;
INSERT INTO "anabranch_check" VALUES(X'616E616272616E63682DCEF54F');
CREATE TABLE anabranch_key (
            digest blob primary key, run integer not null, time real not null
        ) strict, without rowid;
CREATE TABLE anabranch_mail (
            id integer primary key autoincrement, run integer not null, kind text not null,
            name text not null, value blob not null, time real not null
        ) strict;
CREATE TABLE anabranch_purge (run integer primary key) strict;
CREATE TABLE anabranch_row (
            run integer not null, seq integer not null, ident blob not null, kind text not null,
            value blob, digest blob, time real not null, unique (run, seq)
        ) strict;
INSERT INTO "anabranch_row" VALUES(1,1,X'792DE48188EB2D0AEA1673AAF6564D19','intent',X'7B226279223A20226337613433373834343834666464386164306165316264633565303130313634222C20226E616D65223A202273656E64222C20226C6564223A20312C2022696E70757473223A202236633632336437326537343065613835222C20226174223A202252657472696573227D0EE906B5',NULL,1.70000000012162137035e+09);
INSERT INTO "anabranch_row" VALUES(1,2,X'792DE48188EB2D0AEA1673AAF6564D19','gave',X'7B2276616C7565223A202273656E74206F6E6365227DA9AA2816',NULL,1.70000000013898825649e+09);
INSERT INTO "anabranch_row" VALUES(1,3,X'E89793D30610B56E023D842DA718BFE863616C6C3A73656E64','result',X'223739326465343831383865623264306165613136373361616636353634643139221F4C237E',NULL,1.70000000013918328286e+09);
INSERT INTO "anabranch_row" VALUES(1,4,X'2DA718BFE8D61D5853FC87177CAF17BA','attempt',X'7B22636C6F636B223A20302E303031383538393739393939373234333937322C2022647565223A20313730303030303035302E313339333738332C20227573616765223A207B7D7D5C383DDA',NULL,1.70000000013940405843e+09);
CREATE TABLE anabranch_run (
            id integer primary key autoincrement, run_id text not null unique,
            class_name text not null, version integer not null, state text not null,
            inputs blob not null, queue text not null, created real not null,
            updated real not null, fence integer not null default 0,
            owner text not null default '', lease_until real,
            recoveries integer not null default 0, claimed_at_row integer not null default 0,
            error blob, clock real not null default 0
        ) strict;
INSERT INTO "anabranch_run" VALUES(1,'retry','_killed_runs:Retries',1,'running',X'7B7D537E9601','',1.70000000009566378596e+09,1.70000000010397696497e+09,1,'host:1',NULL,0,0,NULL,0.0);
CREATE INDEX anabranch_run_state on anabranch_run (state, queue);
CREATE INDEX anabranch_row_digest on anabranch_row (digest) where digest is not null;
CREATE INDEX anabranch_mail_run on anabranch_mail (run, id);
CREATE INDEX anabranch_key_time on anabranch_key (time, run);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('anabranch_run',1);
COMMIT;
PRAGMA application_id = 1097752930;
PRAGMA user_version = 2;
