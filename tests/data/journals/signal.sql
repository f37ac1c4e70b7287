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
INSERT INTO "anabranch_row" VALUES(1,1,X'80B22E9E860613D7299054C7A43784486C6F6164','result',X'5B226265666F7265222C22C3A920F09F9880225DB664A59D',NULL,1700000000.11226);
INSERT INTO "anabranch_row" VALUES(1,2,X'7EAB7467563DAE64085B2C8BE50F9071','waits',X'7B226B696E64223A20227369676E616C222C20226E616D65223A2022676F222C20227365636F6E6473223A206E756C6C2C2022756E74696C223A206E756C6C2C202274797065223A2022737472227D73830CBD',NULL,1.70000000011265921589e+09);
CREATE TABLE anabranch_run (
            id integer primary key autoincrement, run_id text not null unique,
            class_name text not null, version integer not null, state text not null,
            inputs blob not null, queue text not null, created real not null,
            updated real not null, fence integer not null default 0,
            owner text not null default '', lease_until real,
            recoveries integer not null default 0, claimed_at_row integer not null default 0,
            error blob, clock real not null default 0
        ) strict;
INSERT INTO "anabranch_run" VALUES(1,'signal','_killed_runs:Waits',1,'running',X'7B7D74A4FB15','',1.70000000007825493816e+09,1.70000000008249592779e+09,1,'host:1',NULL,0,0,NULL,0.0);
CREATE INDEX anabranch_run_state on anabranch_run (state, queue);
CREATE INDEX anabranch_row_digest on anabranch_row (digest) where digest is not null;
CREATE INDEX anabranch_mail_run on anabranch_mail (run, id);
CREATE INDEX anabranch_key_time on anabranch_key (time, run);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('anabranch_run',1);
COMMIT;
PRAGMA application_id = 1097752930;
PRAGMA user_version = 2;
