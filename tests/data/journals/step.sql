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
INSERT INTO "anabranch_row" VALUES(1,1,X'9CE47F8425D5AC65C2438DC7A43784486C6F6164','result',X'5B226669727374222C22C3A920F09F9880225D81BB2A07',NULL,1.70000000010446357728e+09);
INSERT INTO "anabranch_row" VALUES(1,2,X'5E30B5C8B13A845BDCD199C7A437844841646473','result',X'33E803FA7C',NULL,1.70000000011044216153e+09);
CREATE TABLE anabranch_run (
            id integer primary key autoincrement, run_id text not null unique,
            class_name text not null, version integer not null, state text not null,
            inputs blob not null, queue text not null, created real not null,
            updated real not null, fence integer not null default 0,
            owner text not null default '', lease_until real,
            recoveries integer not null default 0, claimed_at_row integer not null default 0,
            error blob, clock real not null default 0
        ) strict;
INSERT INTO "anabranch_run" VALUES(1,'step','_killed_runs:Steps',1,'running',X'7B7D55E27D20','',1.70000000005807018282e+09,1.70000000006359720233e+09,1,'host:1',NULL,0,0,NULL,0.0);
CREATE INDEX anabranch_run_state on anabranch_run (state, queue);
CREATE INDEX anabranch_row_digest on anabranch_row (digest) where digest is not null;
CREATE INDEX anabranch_mail_run on anabranch_mail (run, id);
CREATE INDEX anabranch_key_time on anabranch_key (time, run);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('anabranch_run',1);
COMMIT;
PRAGMA application_id = 1097752930;
PRAGMA user_version = 2;
