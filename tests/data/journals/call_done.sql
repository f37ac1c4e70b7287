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
INSERT INTO "anabranch_row" VALUES(1,1,X'CB5F265351857972A53B33A830064339','intent',X'7B226279223A20226337613433373834343834666464386164306165316264633565303130313634222C20226E616D65223A202273656E64222C20226C6564223A20312C2022696E70757473223A202265633633323433656135366134336566222C20226174223A202253656E6473227D4B6687BC',NULL,1.70000000013506817816e+09);
INSERT INTO "anabranch_row" VALUES(1,2,X'CB5F265351857972A53B33A830064339','gave',X'7B2276616C7565223A202273656E74206669727374227D759F9028',NULL,1.70000000014769864081e+09);
INSERT INTO "anabranch_row" VALUES(1,3,X'C22165DEC703B249C365C9C7A437844863616C6C3A73656E64','result',X'22636235663236353335313835373937326135336233336138333030363433333922F39E74B7',NULL,1.70000000014785599715e+09);
INSERT INTO "anabranch_row" VALUES(1,4,X'7FBBC97670443429319858395211CD9F','intent',X'7B226279223A20226337613433373834343834666464386164306165316264633565303130313634222C20226E616D65223A202273656E64222C20226C6564223A20312C2022696E70757473223A202234616431326635373664303339613238222C20226174223A202253656E6473227D953759A4',NULL,1.70000000014893031113e+09);
CREATE TABLE anabranch_run (
            id integer primary key autoincrement, run_id text not null unique,
            class_name text not null, version integer not null, state text not null,
            inputs blob not null, queue text not null, created real not null,
            updated real not null, fence integer not null default 0,
            owner text not null default '', lease_until real,
            recoveries integer not null default 0, claimed_at_row integer not null default 0,
            error blob, clock real not null default 0
        ) strict;
INSERT INTO "anabranch_run" VALUES(1,'call_done','_killed_runs:Sends',1,'running',X'7B2274657874223A20227365636F6E64227DB024CC92','',1.70000000009919142725e+09,1.70000000012129235272e+09,1,'host:1',NULL,0,0,NULL,0.0);
CREATE INDEX anabranch_run_state on anabranch_run (state, queue);
CREATE INDEX anabranch_row_digest on anabranch_row (digest) where digest is not null;
CREATE INDEX anabranch_mail_run on anabranch_mail (run, id);
CREATE INDEX anabranch_key_time on anabranch_key (time, run);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('anabranch_run',1);
COMMIT;
PRAGMA application_id = 1097752930;
PRAGMA user_version = 2;
